"""In the folder of sessions nothing changes that is not ours, whatever lies there; what cannot be done is logged."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from random import Random

import pytest

from decoding.core.session_info import SessionState
from decoding.errors import ConfigError
from server.engine_client.sessions.session_file import HEADER, seal
from server.engine_client.sessions.session_folder import MARKER, FolderLimits, SessionFolder
from server.http.repeated_lines import LOGGERS, SECONDS, OnceAMinute
from tests.strangers_files import LONG_AGO, lost, picture, plant, without

ROOMY = FolderLimits(per_tenant=2**20, in_all=2**20, time_to_live=3600.0)
SMALL = FolderLimits(per_tenant=3000, in_all=5000, time_to_live=3600.0)
NAMES = [(tenant, session) for tenant in ("alice", "bob") for session in ("one", "two", "three")]


def state(tenant: str = "alice", session_id: str = "one", num_bytes: int = 1000) -> SessionState:
    return SessionState(tenant, session_id, {"ngrams": [bytes(num_bytes)]})


def use(folder: SessionFolder) -> None:
    """All that a server does with its folder."""
    for name in NAMES:
        folder.read(*name, "m")
        folder.write(state(*name), "m")
        folder.read(*name, "m")
    folder.tidy()
    for name in NAMES[::2]:
        try:
            folder.delete(*name)
        except OSError:
            continue
    folder.tidy()


def strange_home(root: Path, random: Random) -> None:
    """A folder of sessions of ours, half of the time, to which strangers have added theirs."""
    home = root / "home"
    home.mkdir()
    paths = [SessionFolder(root / "other", ROOMY).path_of(*name) for name in NAMES]
    names = [*(path.parent.name for path in paths), *(path.name for path in paths), "tmpabcdefgh.part"]
    contents = [b"x", HEADER[:-1], b"_" + HEADER, b"gander sessions"]  # no file of strangers is quite like ours
    plant(root / "other", ["thing"], contents, random, 1)
    is_marked = random.random() < 0.5
    plant(home, names, contents, random)
    if is_marked:
        (home / MARKER).touch()  # last: an empty file with a second name like a session's would be ours


@pytest.mark.parametrize("num_trees", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_byte_of_a_stranger_changes(tmp_path: Path, num_trees: int, caplog: pytest.LogCaptureFixture) -> None:
    num_refused, num_used = 0, 0
    for number in range(num_trees):
        root, random = tmp_path / str(number), Random(number)
        root.mkdir()
        strange_home(root, random)
        before = picture(root)
        try:
            folder = SessionFolder(root / "home", random.choice((ROOMY, SMALL)))
        except ConfigError:
            num_refused += 1
            assert picture(root) == before, number
        else:
            num_used += 1
            use(folder)
            assert lost(before, picture(root)) == {}, number
            plant(root / "home", ["another thing"], [b"x"], random, 1)  # strangers come while the server runs
            before = without(picture(root), ours(root / "home"))
            use(folder)
            assert lost(before, picture(root)) == {}, number
        shutil.rmtree(root)
    assert min(num_refused, num_used) > num_trees / 5
    assert all(record.exc_info is None for record in caplog.records)


def ours(home: Path) -> list[str]:
    """Files of sessions, also by second names that strangers gave them."""
    found = [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path.relative_to(home.parent)) for path in found if path.read_bytes().startswith(HEADER)]


def test_a_thesis_stays_and_is_named_in_the_refusal(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "Documents").mkdir(parents=True)
    (home / "Documents" / "thesis.txt").write_text("years of work")
    os.utime(home / "Documents" / "thesis.txt", (LONG_AGO, LONG_AGO))
    with pytest.raises(
        ConfigError, match=r"holds Documents, which is no session: name another folder, or make an empty"
    ):
        SessionFolder(home, ROOMY)
    (home / MARKER).touch()  # as the sentence says
    SessionFolder(home, ROOMY).tidy()
    assert (home / "Documents" / "thesis.txt").read_text() == "years of work"


def test_files_of_ours_before_there_was_a_marker_are_adopted(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path, ROOMY)
    folder.write(state(), "m")
    path = folder.path_of("alice", "one")
    unfinished, empty = path.with_name("tmp_0123abc.part"), path.with_name("f" * 32 + ".session")
    unfinished.write_bytes(path.read_bytes()[:100])
    empty.touch()
    (tmp_path / "0123456789abcdef0123456789abcdef").mkdir()  # of a key that has no session left
    older = HEADER + b"7\n" + bytes(100)
    path.with_name("e" * 32 + ".session").write_bytes(older)
    (tmp_path / MARKER).unlink()
    again = SessionFolder(tmp_path, ROOMY)
    assert (tmp_path / MARKER).stat().st_size == 0
    assert again.read("alice", "one", "m") == state()
    for file in path.parent.iterdir():
        os.utime(file, (LONG_AGO, LONG_AGO))
    again.tidy()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["thesis.txt", "a" * 32 + ".session", "tmp_0123abc.part", "link"])
def test_one_strangers_file_among_ours_is_enough_to_refuse(tmp_path: Path, name: str) -> None:
    folder = SessionFolder(tmp_path, ROOMY)
    folder.write(state(), "m")
    beside = folder.path_of("alice", "one").with_name(name)
    if name == "link":
        beside = beside.with_name("a" * 32 + ".session")
        beside.symlink_to(folder.path_of("alice", "one"))
    else:
        beside.write_bytes(b"a stranger's")
    (tmp_path / MARKER).unlink()
    with pytest.raises(ConfigError, match=rf"holds \w+/{beside.name}, which is no session"):
        SessionFolder(tmp_path, ROOMY)


def test_a_link_to_a_folder_or_file_elsewhere_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = SessionFolder(tmp_path / "home", ROOMY)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path, other = folder.path_of("alice", "one"), folder.path_of("bob", "one")
    content = seal(state(), "m", path.name)
    (elsewhere / path.name).write_bytes(content)
    path.parent.symlink_to(elsewhere)
    other.parent.mkdir()
    other.symlink_to(elsewhere / path.name)
    os.utime(elsewhere / path.name, (LONG_AGO, LONG_AGO))
    before = picture(tmp_path)
    folder.tidy()
    for name in (("alice", "one"), ("bob", "one")):
        folder.write(state(*name, num_bytes=5), "m")
        assert folder.read(*name, "m") is None
        with pytest.raises(OSError, match=r".+"):
            folder.delete(*name)
    assert picture(tmp_path) == before
    assert len(caplog.messages) == 4


def test_a_pipe_with_a_sessions_name_holds_nobody_up(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path, ROOMY)
    path = folder.path_of("alice", "one")
    path.parent.mkdir()
    os.mkfifo(path)
    assert folder.read("alice", "one", "m") is None
    folder.write(state(), "m")
    folder.tidy()
    assert path.is_fifo()


def test_a_file_larger_than_a_keys_sessions_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = SessionFolder(tmp_path, ROOMY)
    folder.write(state(), "m")
    os.truncate(folder.path_of("alice", "one"), 2**40)
    assert folder.read("alice", "one", "m") is None
    assert "it is larger than the sessions of a key may be" in caplog.text


def test_a_folder_that_is_gone_is_logged_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = SessionFolder(tmp_path / "home", ROOMY)
    shutil.rmtree(tmp_path / "home")
    use(folder)
    assert {line.split(" /")[0] for line in caplog.messages} == {
        "A session cannot be written to",
        "The folder of sessions",
    }


def test_sessions_that_cannot_be_written_are_logged_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, now = SessionFolder(tmp_path / "home", ROOMY), [0.0]
    shutil.rmtree(tmp_path / "home")
    assert "gander.sessions" in LOGGERS, "the server does not thin out these lines"
    lines = OnceAMinute(lambda: now[0])
    logger = logging.getLogger("gander.sessions")
    logger.addFilter(lines)
    try:
        for minute in range(3):
            now[0] = minute * SECONDS
            for number in range(100):
                folder.write(state(session_id=str(number)), "m")
    finally:
        logger.removeFilter(lines)
    first, *others = caplog.messages
    assert first == f"A session cannot be written to {tmp_path / 'home'}: No such file or directory."
    assert others == [f"{first} (99 more like it were not shown)"] * 2


def test_with_a_key_only_what_it_signed_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = {"none": b"", "ours": b"a" * 32, "others": b"b" * 32}
    wrong = {
        ("none", "ours"): "it is not signed with the key of --sessions-key",
        ("ours", "none"): "it is signed with a key, and there is no --sessions-key",
        ("ours", "others"): "it was cut short or changed, has another key, or is another's",
    }
    for writer, reader in (*wrong, ("ours", "ours"), ("none", "none")):
        caplog.clear()
        SessionFolder(tmp_path, ROOMY, keys[writer]).write(state(), "m")
        folder = SessionFolder(tmp_path, ROOMY, keys[reader])
        found = folder.read("alice", "one", "m")
        assert found == (state() if writer == reader else None)
        told = [] if writer == reader else [wrong[writer, reader]]
        assert caplog.messages == [
            f"The session in {folder.path_of('alice', 'one')} is not gone on with: {each}." for each in told
        ]
        folder.write(state(), "m")  # what is refused makes room for what comes after it
        assert folder.read("alice", "one", "m") == state()
