"""How many words a text has, also where no space stands between them."""

from __future__ import annotations

import re

UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Characters of Chinese and Japanese, as a class of a regular expression has them: each counts as a word."""

# With the signs beside it, which are no words.
_ALONE = re.compile(rf"[^\w\s]*[{UNSPACED}][^\w\s]*")


def word_count(text: str) -> int:
    """Words of a text, by its spaces; in Chinese and Japanese, characters."""
    return len(_ALONE.sub(r" \g<0> ", text).split())
