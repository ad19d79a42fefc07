"""The ``transformers`` package, of which the tokenizers and the chat template are used."""

from __future__ import annotations

import os
from types import ModuleType


def transformers() -> ModuleType:
    """The package, imported when it is needed: that takes seconds.

    Its import advises to install PyTorch, which nothing here needs: advice is left out, warnings are not.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    import transformers as package

    return package
