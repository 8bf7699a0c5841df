"""llama.cpp's own library on our ggml: any model that it loads, with plans and causes.

`open` loads a model; the options are those of `ggml_py.models.load`. libllama is built when it is
first needed.
"""

from .model import LlamaModel as LlamaModel
from .opening import open as open
from .opening import open_command_line as open_command_line
from .options import Fit as Fit
from .tokenizer import Tokenizer as Tokenizer
