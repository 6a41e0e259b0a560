"""Where the NaN and infinities of a captured backward begin, from what the capture keeps: nothing runs again."""
