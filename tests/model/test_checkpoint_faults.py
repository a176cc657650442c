import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.model.checkpoint import INDEX_NAME
from deepinfer.model.shard import read_header
from tests.model.tiny import FIRST, SECOND, THIRD, edit_index, one_problem, problems, rebuild

# What the index says.


def test_a_directory_that_does_not_exist_is_refused(tmp_path):
    assert "no such directory" in one_problem(tmp_path / "absent")


def test_a_directory_without_weights_is_refused(tmp_path):
    assert "holds neither" in one_problem(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not readable as JSON"),
        ("[]", "weight_map"),
        ('{"weight_map": {"norm.weight": 3}}', "weight_map"),
        ('{"weight_map": {"norm.weight": "a", "norm.weight": "b"}}', "given twice"),
        ("[" * 100_000, "not readable as JSON"),
    ],
)
def test_an_unreadable_index_is_refused(directory, text, message):
    (directory / INDEX_NAME).write_text(text)
    assert message in one_problem(directory)


@pytest.mark.parametrize("name", ["../copy/{}", "{directory}/{}", "a/../../copy/{}", "a\0{}", ""])
def test_a_shard_named_outside_the_directory_is_refused(directory, name):
    bad = name.format(FIRST, directory=directory)
    (directory / "a").mkdir()
    move = lambda m: m.update({k: bad for k, v in m.items() if v == FIRST})  # noqa: E731
    edit_index(directory, move)
    (directory / FIRST).rename(directory / "elsewhere.safetensors")
    assert "outside the directory" in one_problem(directory)


def test_a_link_loop_is_refused(directory):
    (directory / FIRST).unlink()
    (directory / FIRST).symlink_to(SECOND)
    (directory / SECOND).unlink()
    (directory / SECOND).symlink_to(FIRST)
    found = problems(directory)
    assert len(found) == 2
    assert all("symbolic links" in problem for problem in found)


def test_a_single_file_that_links_to_itself_is_refused(tmp_path):
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    assert "symbolic links" in one_problem(tmp_path)


def test_a_directory_in_place_of_a_shard_is_refused(directory):
    (directory / FIRST).unlink()
    (directory / FIRST).mkdir()
    assert one_problem(directory) == f"{FIRST}: no regular file"


def test_a_missing_shard_is_one_fault_not_thousands(directory):
    (directory / SECOND).unlink()
    assert one_problem(directory).startswith(f"{SECOND}: shard missing")


def test_a_tensor_missing_from_index_and_files_is_named(directory):
    edit_index(directory, lambda m: m.pop("norm.weight"))
    shard = next(p for p in directory.glob("model-*") if "norm.weight" in read_header(p))
    rebuild(shard, lambda items: items.pop("norm.weight"))
    assert one_problem(directory) == "norm.weight: missing"


def test_a_tensor_that_the_index_promises_must_be_in_its_shard(directory):
    rebuild(directory / FIRST, lambda items: items.pop("embed.weight"))
    assert one_problem(directory).startswith(f"embed.weight: missing from {FIRST}")


def test_a_tensor_that_the_index_omits_is_refused(directory):
    edit_index(directory, lambda m: m.pop("embed.weight"))
    assert "embed.weight: stored in" in one_problem(directory)


def test_an_index_that_points_at_the_wrong_shard_is_refused(directory):
    edit_index(directory, lambda m: m.update({"embed.weight": SECOND}))
    assert one_problem(directory) == (
        f"embed.weight: stored in {FIRST}, but the index says {SECOND}"
    )


def test_a_tensor_in_two_shards_is_refused(directory):
    item = {}
    rebuild(directory / FIRST, lambda items: item.update(e=items["embed.weight"]))
    rebuild(directory / SECOND, lambda items: items.update({"embed.weight": item["e"]}))
    assert one_problem(directory) == f"embed.weight: stored 2 times, in {FIRST}, {SECOND}"


def test_a_shard_under_a_second_name_with_other_content_is_refused(directory):
    twin = "model-00001-of-00004.safetensors"
    shutil.copy(directory / FIRST, directory / twin)
    rebuild(directory / twin, lambda items: items["embed.weight"].__setitem__(2, bytes(96 * 128)))
    assert one_problem(directory).startswith(f"{twin}: not named in")
    edit_index(directory, lambda m: m.update({"layers.0.attn.attn_sink": twin}))
    found = problems(directory)
    assert len(found) == len(read_header(directory / FIRST))
    assert all("stored 2 times" in problem for problem in found)


def test_one_file_under_two_names_is_refused(directory):
    (directory / "other.safetensors").symlink_to(FIRST)
    edit_index(directory, lambda m: m.update({"embed.weight": "other.safetensors"}))
    assert "listed twice" in one_problem(directory)


# What the headers say.


def test_an_unexpected_tensor_is_refused(directory):
    rebuild(directory / FIRST, lambda i: i.update({"layers.0.hc_norm": ["F32", [1], b"\0" * 4]}))
    edit_index(directory, lambda m: m.update({"layers.0.hc_norm": FIRST}))
    assert one_problem(directory).startswith("layers.0.hc_norm: unexpected")


@pytest.mark.parametrize(
    ("dtype", "shape"), [("F16", [96, 64]), ("BF16", [64, 96]), ("BF16", [96 * 64])]
)
def test_another_dtype_or_shape_is_refused(directory, dtype, shape):
    rebuild(
        directory / FIRST,
        lambda i: i.update({"embed.weight": [dtype, shape, i["embed.weight"][2]]}),
    )
    assert one_problem(directory) == (
        f"embed.weight: {dtype} {shape} in {FIRST}, the architecture needs BF16 [96, 64]"
    )


@given(st.data())
def test_a_shard_truncated_anywhere_is_refused(pristine, data):
    size = (pristine / FIRST).stat().st_size
    keep = data.draw(st.integers(0, size - 1))
    copy = pristine.parent / "truncated"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(pristine, copy)
    with (copy / FIRST).open("r+b") as file:
        file.truncate(keep)
    assert "truncated" in one_problem(copy)


def test_bytes_after_the_last_tensor_are_refused(directory):
    with (directory / FIRST).open("ab") as file:
        file.write(b"12345")
    assert "5 bytes after" in one_problem(directory)


def test_a_git_lfs_pointer_is_recognised(directory):
    (directory / FIRST).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
    assert "git-lfs" in one_problem(directory)


def test_all_faults_come_in_one_error(directory):
    (directory / SECOND).unlink()
    rebuild(
        directory / FIRST,
        lambda i: i.update({"embed.weight": ["F16", [96, 64], i["embed.weight"][2]]}),
    )
    with (directory / THIRD).open("r+b") as file:
        file.truncate(9)
    edit_index(directory, lambda m: m.update({"nonsense": FIRST}))
    found = problems(directory)
    assert len(found) == 5
    text = "\n".join(found)
    for part in ("embed.weight", SECOND, THIRD, "nonsense: unexpected", "nonsense: missing from"):
        assert part in text
