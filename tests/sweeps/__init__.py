"""Sweeps: every differentiable operator of PyTorch's OpInfo database and every module of its ModuleInfo, captured.

`make sweep` runs them all; `tests/test_sweeps.py` a fixed sample.

cases      one sample of one operator or module in one dtype: leaves, forward, gradients of the outputs
checks     what must hold for a case, each judged by something that does not come from the package
workers    processes that run the cases, since an operator may end its process or never return
exceptions what is known not to hold, and why
table      how many of how many, and what did not hold
"""
