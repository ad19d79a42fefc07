"""M-RoPE positions of a prompt: (temporal, height, width) of every token.

Text advances all three axes together. A frame of h x w merged tokens starts where the text stopped, keeps the
temporal axis there, runs over rows and columns, and the text goes on max(h, w) further. Every frame of a
video is a frame of its own, since its timestamp stands between it and the one before.
Equal to ``Qwen3VLModel.get_rope_index`` (transformers 5.23) for a single unpadded prompt.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np


def rope_positions(
    tokens: np.ndarray, grids: np.ndarray, *, visual_token_ids: Collection[int], merge_size: int
) -> np.ndarray:
    """[3, P] int32 positions of the tokens. Raises ValueError for placeholders and grids that do not match.

    tokens: [P] token ids, placeholders expanded; grids: [F, 2] patch rows and columns of each frame in the order in
    which the frames appear; visual_token_ids: the image and the video placeholder.
    """
    tokens = np.asarray(tokens)
    grids = np.asarray(grids).reshape(-1, 2) // merge_size
    positions = np.empty((3, len(tokens)), np.int32)
    visual = np.flatnonzero(np.isin(tokens, list(visual_token_ids)))
    needed = int(grids.prod(axis=1).sum())
    if len(visual) != needed:
        raise ValueError(
            f"{len(visual)} visual placeholders, but the frames need {needed}: the prompt is not theirs"
        )
    here, position, seen = 0, 0, 0
    for rows, columns in grids.tolist():
        count = rows * columns
        start = int(visual[seen])
        if int(visual[seen + count - 1]) != start + count - 1:
            raise ValueError(f"the {count} placeholders of the frame at token {start} are interrupted")
        positions[:, here:start] = np.arange(position, position + start - here)
        position += start - here
        cell = np.arange(count)
        positions[0, start : start + count] = position
        positions[1, start : start + count] = position + cell // columns
        positions[2, start : start + count] = position + cell % columns
        position += max(rows, columns)
        here, seen = start + count, seen + count
    positions[:, here:] = np.arange(position, position + len(tokens) - here)
    return positions
