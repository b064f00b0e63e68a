"""zQuantize: checkpoints become .zse files; one file per scheme.

``convert.convert_model`` is the entry point; ``scheme`` says what a scheme must do. Nothing is
imported here, so that asking for one name does not load torch for another.
"""

from zse.settings import prepare_for_torch

prepare_for_torch()  # the modules of this package import torch
