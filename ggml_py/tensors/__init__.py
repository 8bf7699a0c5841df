from ..boundary import ffi as ffi  # first: without it the error says which wheel has it
