"""What another user of the machine could exchange is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from vcap_jax.system import private_folders
from vcap_jax.system.private_folders import ExposedFolder, is_own_file, make_folder, private_folder

ANOTHER = 65432


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a file, folder or link another user's: only root can, and for others everything of theirs becomes so."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, ANOTHER, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)

    return give


def test_a_new_folder_is_its_users_alone_and_cannot_be_guessed(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = [private_folder(tmp_path / "deeper", "vcap-") for _ in range(2)]
    finally:
        os.umask(before)
    assert made[0] != made[1]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "deeper", *made)] == [0o700] * 3
    assert {path.parent for path in made} == {tmp_path / "deeper"}


@pytest.mark.parametrize("depth", [0, 1])
def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, give_away: Callable[[Path], None], depth: int
) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    give_away([inner, inner.parent][depth])
    with pytest.raises(ExposedFolder, match="belongs to another user"):
        private_folder(inner, "x")
    assert list(inner.iterdir()) == []


def test_a_folder_that_all_may_change_is_refused_unless_it_is_sticky(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for folder in (shared, shared / "below"):
        with pytest.raises(ExposedFolder, match=f"every user can change {shared}"):
            make_folder(folder)
    shared.chmod(0o1777)
    make_folder(shared / "below")


def test_a_link_of_another_user_is_not_followed(tmp_path: Path, give_away: Callable[[Path], None]) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    private_folder(link, "x")
    give_away(link)
    with pytest.raises(ExposedFolder, match=r"link is a link of another user|belongs to another user"):
        private_folder(link, "x")
    assert len(list((tmp_path / "real").iterdir())) == 1


def test_ones_own_link_may_lead_through_no_folder_of_another(
    tmp_path: Path, give_away: Callable[[Path], None]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (tmp_path / "link").symlink_to(theirs)
    give_away(theirs)
    with pytest.raises(ExposedFolder, match="another user"):
        make_folder(tmp_path / "link" / "cache")


def test_files(tmp_path: Path, give_away: Callable[[Path], None]) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    assert not is_own_file(file)
    file.write_text("x")
    file.chmod(0o644)
    link.symlink_to(file)
    assert is_own_file(file)
    assert not is_own_file(link)
    assert not is_own_file(tmp_path)
    file.chmod(0o664)
    assert not is_own_file(file)
    file.chmod(0o600)
    give_away(file)
    assert not is_own_file(file)


@pytest.mark.parametrize(("uids", "refused"), [("0 0 4294967295", True), ("1000 1000 1", False)])
def test_folders_of_root_look_like_nobodys_in_a_container_that_knows_one_user_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    give_away: Callable[[Path], None],
    uids: str,
    refused: bool,
) -> None:
    (tmp_path / "overflow").write_text(f"{ANOTHER}\n")
    (tmp_path / "map").write_text(f"{uids}\n")
    monkeypatch.setattr(private_folders, "_OVERFLOW", tmp_path / "overflow")
    monkeypatch.setattr(private_folders, "_MAP", tmp_path / "map")
    folder = tmp_path / "folder"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    give_away(folder)
    if refused:
        with pytest.raises(ExposedFolder, match="another user"):
            make_folder(folder)
    else:
        make_folder(folder)
