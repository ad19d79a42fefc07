"""The page: every picture in it, clips as strips, nothing from elsewhere, and text that stays text."""

from __future__ import annotations

import re
from pathlib import Path

from tests.captioning.engine import write_pictures
from vcap_jax.captioning.caption import Caption
from vcap_jax.captioning.page import write_caption_page
from vcap_jax.world.dataset import write_dataset


def caption(index: int, path: Path, *texts: str, failure: str | None = None) -> Caption:
    modality = "video" if path.suffix == ".mp4" else "image"
    return Caption(
        index=index,
        id=path.name,
        modality=modality,
        files=(path,),
        texts=texts,
        truncated=tuple(text == "cut" for text in texts),
        failure=failure,
    )


def test_one_page_needs_no_other_file(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path, 3)
    write_dataset(tmp_path / "clips", "video", "paged", 1, seed=0)
    (clip,) = tmp_path.glob("clips/**/*.mp4")
    pictures[2].write_bytes(b"broken")
    captions = [
        caption(0, pictures[0], "A <b>bold</b> & true caption."),
        caption(1, clip, "first", "cut"),
        caption(2, pictures[2], failure="002.png: not a readable image"),
        caption(3, pictures[1], "left out", failure="left out"),
    ]
    page = tmp_path / "out" / "page.html"
    write_caption_page(captions, page, title="By <someone>", total=4, failed=2, limit=3)
    text = page.read_text()
    assert "A &lt;b&gt;bold&lt;/b&gt; &amp; true caption." in text
    assert "By &lt;someone&gt;" in text
    sources = re.findall(r'src="([^"]+)"', text)
    assert len(sources) == 1 + 6
    assert all(source.startswith("data:image/") for source in sources)
    assert "http" not in text
    assert "0.0 s</figcaption>" in text
    assert text.count("cut off") == 1
    assert "002.png: not a readable image" in text
    assert "4 inputs, the first 3 shown, 2 without a caption, or not all" in text, "one of them is not shown"
    assert "left out" not in text


def test_a_picture_that_is_gone_is_told_of_beside_its_caption(tmp_path: Path) -> None:
    gone, broken = tmp_path / "gone.png", tmp_path / "broken.png"
    broken.write_bytes(b"broken")
    page, why = tmp_path / "page.html", "broken.png: not a readable image"
    captions = [caption(0, gone, "A cat."), caption(1, broken, failure=why)]
    write_caption_page(captions, page, title="By someone", total=2, failed=1)
    text = page.read_text()
    assert "A cat." in text
    assert f"{gone}: no such file" in text
    assert text.count("not a readable image") == 1
