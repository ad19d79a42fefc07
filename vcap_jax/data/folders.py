"""A folder of pictures and clips as samples: what stands in place of a manifest."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from vcap_jax.data.errors import ManifestError

_VIDEOS = ".3gp .avi .flv .m2ts .m4v .mkv .mov .mp4 .mpeg .mpg .mts .ogv .ts .webm .wmv"
VIDEO_SUFFIXES = frozenset(_VIDEOS.split(" "))


def media_files(folder: Path) -> Iterator[tuple[Path, bool]]:
    """(file, whether its name is a picture's or a clip's) for all of a folder and of its folders, hidden ones apart.

    Folder by folder in the order of their names, so that a stream can be taken up again; of one directory only the
    names are held. A link back to a folder that it lies in is not followed.
    Raises ManifestError for a picture or clip whose name is not UTF-8.
    """
    return _inside(folder, ())


def image_suffixes() -> frozenset[str]:
    """Those that Pillow opens, but for documents and clips that it would show one picture of."""
    return frozenset(Image.registered_extensions()) - {".pdf", ".ps", ".eps"} - VIDEO_SUFFIXES


def ending(file: Path) -> str:
    """What files that are left out are counted by."""
    return file.suffix.lower() or "no ending"


def _most_endings(counts: Counter[str]) -> str:
    """The five that most files have, with how many. counts: of files, by ``ending``."""
    named = ", ".join(f"{kind} ({count})" for kind, count in counts.most_common(5))
    named = named.encode(errors="backslashreplace").decode()  # names of files need not be UTF-8
    return f"{named}{', ...' if len(counts) > 5 else ''}"


def left_out(counts: Counter[str]) -> str:
    """What a folder holds beside pictures and clips, as it is told, empty if nothing: they may be pictures that nothing
    here opens, or a manifest. counts: of these files, by ``ending``."""
    if counts.total() == 1:
        are = "1 file is left out, which by its name is neither a picture nor a clip"
    else:
        are = f"{counts.total()} files are left out, which by their names are neither pictures nor clips"
    return f"{are} that can be read: {_most_endings(counts)}" if counts else ""


def not_utf8(path: Path) -> str | None:
    """What is wrong with a name that is no UTF-8: nothing could be kept by it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return f"the name of {str(path)!a} is not UTF-8: rename it"
    return None


def _inside(folder: Path, above: tuple[Path, ...]) -> Iterator[tuple[Path, bool]]:
    above = (*above, folder.resolve())
    with os.scandir(folder) as entries:
        found = sorted((e.name, _is_folder(e)) for e in entries if not e.name.startswith("."))
    for name, is_folder in found:
        path = folder / name
        if is_folder:
            if path.resolve() not in above:
                yield from _inside(path, above)
            continue
        seen = path.suffix.lower() in VIDEO_SUFFIXES or path.suffix.lower() in image_suffixes()
        if seen and (problem := not_utf8(path)) is not None:
            raise ManifestError(problem)
        yield path, seen


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False  # a link that leads to itself: nothing is there
