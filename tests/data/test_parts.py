import dataclasses
import errno
import hashlib

import polars as pl
import pytest

from sparsedp.data import parts
from sparsedp.data.parts import MANIFEST, PreparedFolder, finished
from sparsedp.data.schema import Feature, Part, Schema, SourcePosition

SCHEMA = Schema("label", "rule", ("x",), "log", (Feature("f", 10, "hash"),))
FRAME = pl.DataFrame({"label": [1.0], "x": [2.0], "f": [3]})


def add_part(folder, number):
    name, sha256 = folder.write(number, FRAME)
    folder.commit(
        Part(name, 1, sha256, SourcePosition(0, number, number), SourcePosition(0, number + 1, number + 1))
    )


def test_parts_in_the_manifest_are_found_again(tmp_path):
    with PreparedFolder.open(tmp_path, SCHEMA) as folder:
        add_part(folder, 0)
        add_part(folder, 1)
        kept = list(folder.parts)
    with PreparedFolder.open(tmp_path, SCHEMA) as folder:
        assert folder.parts == kept
        whole = folder.finish()
    assert Schema.read(tmp_path) == whole == dataclasses.replace(SCHEMA, parts=tuple(kept))
    assert sorted(path.name for path in tmp_path.iterdir()) == [kept[0].file, kept[1].file, "schema.json"]
    assert hashlib.sha256((tmp_path / kept[0].file).read_bytes()).hexdigest() == kept[0].sha256


@pytest.mark.parametrize("cut", range(1, 40, 7))
def test_a_line_cut_short_by_a_kill_is_dropped(tmp_path, cut):
    with PreparedFolder.open(tmp_path, SCHEMA) as folder:
        add_part(folder, 0)
        add_part(folder, 1)
    content = (tmp_path / MANIFEST).read_bytes()
    (tmp_path / MANIFEST).write_bytes(content[:-cut])
    with PreparedFolder.open(tmp_path, SCHEMA) as folder:
        assert len(folder.parts) == 1
        add_part(folder, 1)
    assert (tmp_path / MANIFEST).read_bytes() == content


def test_other_settings_are_refused_once_there_are_parts(tmp_path):
    other = dataclasses.replace(SCHEMA, categorical=(Feature("f", 11, "hash"),))
    with PreparedFolder.open(tmp_path, SCHEMA) as folder:
        folder.write(5, FRAME)
    with PreparedFolder.open(tmp_path, other) as folder:
        assert not list(tmp_path.glob("part-*")), "what an abandoned attempt left must not stay"
        add_part(folder, 0)
    with (
        pytest.raises(ValueError, match=r"^out: .* was made with other categorical"),
        PreparedFolder.open(tmp_path, SCHEMA),
    ):
        pass


def test_a_finished_folder_is_known_by_its_settings(tmp_path):
    assert finished(tmp_path, SCHEMA) is None
    with PreparedFolder.open(tmp_path, SCHEMA) as folder:
        add_part(folder, 0)
        whole = folder.finish()
    assert finished(tmp_path, SCHEMA) == whole
    with pytest.raises(ValueError, match=r"was made with other label_rule"):
        finished(tmp_path, dataclasses.replace(SCHEMA, label_rule="other"))


def test_only_one_at_a_time(tmp_path):
    with PreparedFolder.open(tmp_path, SCHEMA):  # noqa: SIM117
        with pytest.raises(ValueError, match=r"^out: another process is preparing"):
            with PreparedFolder.open(tmp_path, SCHEMA):
                pass
    with PreparedFolder.open(tmp_path, SCHEMA):
        pass


def test_a_full_disk_says_what_to_do_and_can_be_taken_up_again(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(parts, "write_file", full)
        with (
            pytest.raises(
                OSError, match=r"no space left in .*: free some space and run the same command again"
            ),
            PreparedFolder.open(tmp_path, SCHEMA) as folder,
        ):
            add_part(folder, 0)
    with PreparedFolder.open(tmp_path, SCHEMA) as folder:
        assert folder.parts == []


def test_other_disk_errors_stay_what_they_are(tmp_path):
    with pytest.raises(PermissionError), PreparedFolder.open(tmp_path, SCHEMA):
        raise PermissionError(errno.EACCES, "no")
