"""The chat layout and the special tokens of Qwen3-VL, for tokenizers made here rather than read from a
checkpoint.

A checkpoint brings its own template and tokens; these are what the embedded world's tokenizer and the tests
use, so that a tiny model reads prompts laid out exactly like a real one.
"""

from __future__ import annotations

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"
VISION_PAD = "<|vision_pad|>"
IMAGE_PAD = "<|image_pad|>"
VIDEO_PAD = "<|video_pad|>"

SPECIAL_TOKENS: tuple[str, ...] = (
    END_OF_TEXT,
    IM_START,
    IM_END,
    VISION_START,
    VISION_END,
    VISION_PAD,
    IMAGE_PAD,
    VIDEO_PAD,
)
"""In the order in which a new tokenizer gives them ids. ``<|endoftext|>`` pads, ``<|im_end|>`` ends a
turn."""

# Each message becomes "<|im_start|>role\n" + content + "<|im_end|>\n". Content is a string or a list of
# parts; an image or a video part becomes its placeholder between vision_start and vision_end, a text part its
# text.
CHAT_TEMPLATE: str = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.content is string -%}"
    "{{- message.content -}}"
    "{%- else -%}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif part.type == 'video' -%}"
    "{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}"
    "{%- elif part.type == 'text' -%}"
    "{{- part.text -}}"
    "{%- else -%}"
    "{{- raise_exception('unknown content type ' ~ part.type) -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|im_start|>assistant\\n' -}}"
    "{%- endif -%}"
)
