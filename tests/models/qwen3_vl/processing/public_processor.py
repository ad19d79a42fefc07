"""What the public Qwen3-VL processor makes of the cases. Needs torch and torchvision."""

from __future__ import annotations

import tempfile
import types
from typing import Any

import numpy as np
from PIL import Image

from tests.live_reference import require_torchvision
from tests.models.qwen3_vl.processing.cases import Case, Clip


def public_encode(case: Case) -> dict[str, np.ndarray]:
    """tokens [P], positions [3, P], image_grids and video_grids [n, 3], image_levels and video_levels.

    Levels are uint8 [patches, dim]: the normalised pixels scaled back to 0 .. 255, which loses nothing.
    """
    require_torchvision()
    from transformers import AutoProcessor, Qwen3VLModel
    from transformers.video_utils import VideoMetadata

    with tempfile.TemporaryDirectory() as folder:
        case.processor().save_pretrained(folder)
        processor = AutoProcessor.from_pretrained(folder)
    content: list[dict[str, Any]] = []
    metadata: list[Any] = []
    sampled = False
    for item in case.content:
        if isinstance(item, str):
            content.append({"type": "text", "text": item})
        elif isinstance(item, Image.Image):
            content.append({"type": "image", "image": item})
        else:
            assert isinstance(item, Clip)
            sampled = item.indices is None
            frames = item.frames if sampled else item.frames[list(item.indices or ())]
            content.append({"type": "video", "video": frames})
            indices = list(item.indices or range(len(item.frames)))
            metadata.append(
                VideoMetadata(total_num_frames=len(item.frames), fps=item.fps, frames_indices=indices)
            )
    settings: dict[str, Any] = {"do_sample_frames": sampled}
    if metadata:
        settings["video_metadata"] = metadata
    out = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
        processor_kwargs=settings,
    )
    # The position rule needs nothing of the model but the merge size.
    vision = types.SimpleNamespace(spatial_merge_size=processor.image_processor.merge_size)
    model = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
    model.get_vision_position_ids = types.MethodType(Qwen3VLModel.get_vision_position_ids, model)
    positions, _ = Qwen3VLModel.get_rope_index(
        model,
        out["input_ids"],
        out["mm_token_type_ids"],
        out.get("image_grid_thw"),
        out.get("video_grid_thw"),
    )
    result = {"tokens": out["input_ids"][0].numpy(), "positions": positions[:, 0].numpy()}
    for kind, grid, values in (
        ("image", "image_grid_thw", "pixel_values"),
        ("video", "video_grid_thw", "pixel_values_videos"),
    ):
        if grid in out:
            result[f"{kind}_grids"] = out[grid].numpy()
            result[f"{kind}_levels"] = to_levels(out[values].numpy())
    return {
        name: value if value.dtype == np.uint8 else value.astype(np.int32) for name, value in result.items()
    }


def to_levels(normalised: np.ndarray) -> np.ndarray:
    """uint8 levels of pixels normalised with mean and deviation 0.5."""
    levels = (normalised.astype(np.float64) * 0.5 + 0.5) * 255
    assert np.abs(levels - levels.round()).max() < 1e-3
    return levels.round().astype(np.uint8)
