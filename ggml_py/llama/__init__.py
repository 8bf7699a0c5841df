"""llama.cpp's own library on our ggml: any model that it loads, with plans and causes.

`open` loads a model; the options are those of `ggml_py.models.load`. libllama is built when it is
first needed.
"""

from .model import Fit as Fit
from .model import LlamaModel as LlamaModel
from .model import open as open
from .tokenizer import Tokenizer as Tokenizer
