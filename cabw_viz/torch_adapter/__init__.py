"""Every private name of PyTorch that the package uses, in one place.

The modules here name, read and switch; they decide nothing. They are the only files that may use torch's private
names; all others say `torch_adapter.name`, for a name imported below. `check()` compares the callbacks and the engine
entry with those that the package was written for; a private name that is missing altogether shows at import. Either
gives one clear error that names the version of PyTorch, and not a wrong record.

    engine             the function by which Python enters the engine, its calls, and a patch of it
    callbacks          callbacks of compiled autograd's tracer: known arguments and fallback answers
    compatibility      check()
    compiled_autograd  switching the tracer on and off, its cache and its counters
    graph_calls        the functions that a captured graph calls, and the layouts of their arguments
    nodes, saved       autograd nodes, and what they have saved
    checkpoints        what activation checkpoints run again, and how often
    aot_backward       backwards of compiled regions
    dispatch, dtypes   operators by their schemas; dtypes by their numbers
    tensors, modes     storages and watched tensors; dispatch modes, function modes, proxies
    frames             frames of PyTorch's own code
    functions          what a Python function refers to
    quick_fx           FX nodes and GraphModules made the quick way
    quick_sizes        lifted sizes as numbers with a symbol's interface
    framework_hooks    hooks of FSDP, DDP and others, which must run once
    settings           modes and settings of a process
    symbolic           symbolic shapes, fake tensors, make_fx
    guard_expressions  guards on symbolic sizes as Python expressions
    dynamo             what Dynamo has compiled, and contexts around its compilations

Read in torch 2.8 to 2.15.
"""

from __future__ import annotations

import torch

from cabw_viz.errors import CabwError

try:
    from cabw_viz.torch_adapter.aot_backward import (
        aot_placeholders,
        donated_tensors,
        is_aot_backward,
        is_aot_context,
        traceable_aot_backward,
    )
    from cabw_viz.torch_adapter.callbacks import (
        GUARDED_CALLBACKS,
        TracerBase,
        ctx_of_backward,
        fallback_answer,
        is_unpatched_tracer,
    )
    from cabw_viz.torch_adapter.checkpoints import (
        KeptResults,
        checkpoint_frame,
        drop_recomputed,
        one_recomputation,
        recomputed_objects,
    )
    from cabw_viz.torch_adapter.compatibility import (
        check,
    )
    from cabw_viz.torch_adapter.compiled_autograd import (
        UserCompiler,
        clear_cache,
        close_unfinished,
        compiled_autograd_exclusion,
        compiled_autograd_is_on,
        compiled_autograd_off,
        compiled_autograd_op_by_op,
        count_of_captures,
        trace_isolation,
        tracing,
        user_compiler,
    )
    from cabw_viz.torch_adapter.dispatch import (
        CONCRETE_QUERIES,
        QUERIES,
        argument_names,
        is_arithmetic,
        is_aten_call,
        is_empty,
        is_literal,
        is_operator,
        is_size_arithmetic,
        operands,
        reads_data,
        returns_new_tensors,
        viewed_argument,
        written_arguments,
    )
    from cabw_viz.torch_adapter.dtypes import (
        DTYPES,
        SCALAR_TYPES,
    )
    from cabw_viz.torch_adapter.dynamo import (
        compiling,
        count_of_graphs,
        count_of_inductor,
        drop_compiled_code_of,
        dynamo_has_compiled,
        inductor_has_own_random_numbers,
        is_compiled,
        mapped_compile_requests,
        nothing_compiled,
        original_module,
        random_numbers_of_eager,
        reset_dynamo,
        set_eval_frame,
        skip_frames_of,
        watched_compiled_calls,
        watched_compiled_regions,
        wrapped_compilations,
    )
    from cabw_viz.torch_adapter.engine import (
        TRACES_INSIDE,
        EngineCall,
        FirstAccumulateHook,
        accumulating_nodes,
        backward_is_running,
        compiler_is_tracing,
        gradient_edge,
        graph_task,
        patched_engine_entry,
        running_node,
    )
    from cabw_viz.torch_adapter.frames import (
        backward_maker,
        is_call_wrapper,
        is_called_by_name,
        is_dispatch_code,
    )
    from cabw_viz.torch_adapter.framework_hooks import (
        REDUCING,
        SHARDING,
        FrameworkContext,
        FrameworkHook,
        queues_callback,
        unknown_function_of,
        without_framework,
    )
    from cabw_viz.torch_adapter.functions import (
        closure_values,
        globals_read,
    )
    from cabw_viz.torch_adapter.graph_calls import (
        NODE_CALL,
        accumulated_gradient,
        accumulated_variable,
        aot_prologue_gradients,
        backward_gradients,
        call_accumulate_grad,
        call_backward,
        call_cpp_tensor_pre_hooks,
        call_hook,
        copy_slices_epilogue,
        copy_slices_geometry,
        copy_slices_prologue,
        ctx_index,
        final_callbacks,
        has_old_gradient,
        has_post_hooks,
        hook_index,
        hook_input,
        hook_type,
        input_index,
        is_aot_prologue,
        is_validate_outputs,
        lifted_index,
        needs_input_grad,
        op_name,
        packed_index,
        scratch_arguments,
        unwrap_size,
        with_output_dtypes,
    )
    from cabw_viz.torch_adapter.guard_expressions import (
        NAMES_IN_GUARDS,
        expression_of,
        guards_of,
        text_of,
    )
    from cabw_viz.torch_adapter.modes import (
        InfraMode,
        active_fx_tracer,
        as_below_autograd,
        below_modes,
        below_modes_and_functions,
        call_below_autograd,
        called_unseen,
        graph_node_of,
        modes_are_on,
        push_mode_at_bottom,
        remove_mode,
        share_proxy,
        unseen_operators,
        without_any_torch_function,
        without_modes,
        without_proxies,
        without_torch_function,
    )
    from cabw_viz.torch_adapter.nodes import (
        HookDicts,
        ctx_attributes,
        ctx_tensors,
        expects_nested,
        gradient_specs,
        hooks_after_accumulation,
        hooks_on_leaf,
        input_count,
        input_metadata,
        is_python_function,
        jit_tracing_state,
        moved_to_front,
        name_of_node,
        post_hooks,
        pre_hooks,
        sequence_number,
        sequence_number_of,
    )
    from cabw_viz.torch_adapter.quick_fx import (
        QuickFxTracer,
        current_stack_trace,
        lazy_graph_module,
        set_stack_trace,
        use_quick_parts,
    )
    from cabw_viz.torch_adapter.quick_sizes import (
        is_quick_size,
        quick_value,
    )
    from cabw_viz.torch_adapter.saved import (
        DETECTS_PACKED,
        PACKED,
        field_values,
        has_freed_buffers,
        saved_fields,
        saved_tensor_errors,
        saved_values,
        unpack_hooks,
    )
    from cabw_viz.torch_adapter.settings import (
        Setting,
        settings,
    )
    from cabw_viz.torch_adapter.sharded_parameters import (
        gathered_tensors,
    )
    from cabw_viz.torch_adapter.symbolic import (
        NO_FAKE_KERNEL,
        UNTRACEABLE,
        decided_by_captured_sizes,
        fake_mode,
        fake_with_numbers,
        fake_with_symbols,
        is_symbolic,
        named_source,
        new_symbol,
        operators_of,
        shape_env,
        size_source,
        symbolic_size,
        traced_on_fakes,
        with_concrete_sizes,
    )
    from cabw_viz.torch_adapter.tensors import (
        FakeTensor,
        alias_asking_python,
        base_of,
        bytes_of_elements,
        can_be_watched,
        class_of_constant,
        inner_tensors,
        is_batched,
        is_fake,
        is_freed,
        is_plain_input,
        is_wrapper_subclass,
        memory_of,
        plain_parts,
        plain_shape,
        plain_values,
        set_version,
        shape_of,
        share_storage,
        storage_identity,
        storages_of,
        tree_leaves,
        tree_map,
        tree_map_only,
        version,
        wrapper_tensor,
        wrapper_without_memory,
    )
except (AttributeError, ImportError) as error:
    raise CabwError(
        f"torch {torch.__version__} lacks what cabw_viz reads of it ({error})",
        expected="torch 2.8 or newer, of a release that this cabw_viz knows",
        try_="pip install --upgrade 'torch>=2.8' cabw_viz",
    ) from error
