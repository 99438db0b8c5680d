"""A settings file however it was written: read, or refused with its line, in little time and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from wrasse.config.load import load
from wrasse.config.yaml_file import BYTES_MAX, parse_yaml
from wrasse.errors import ConfigError

LAUGHS = "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9 if before else ['ha'] * 9)}]\n"
    for before, name in zip(["", *"abcdefgh"], "abcdefghi", strict=True)
)
MERGES = "k0: &k0 {a: 1, b: 2}\n" + "".join(
    f"k{n}: &k{n} {{<<: [{', '.join([f'*k{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
)
SECTIONED = "worker:\n  <<: *k11\n"
HOSTILE = [
    pytest.param(LAUGHS, "line [0-9]+ .*keys and values", id="billion laughs"),
    pytest.param(MERGES + SECTIONED, "line [0-9]+ .*keys and values", id="a merge bomb"),
    pytest.param("a: &a [*a]\n", "line 1 .*contains it", id="a list in itself"),
    pytest.param("worker: &w\n  <<: *w\n", "line 2 .*contains it", id="a map that merges itself"),
    pytest.param("[" * 100_000, "line 1 .*deep", id="open lists"),
    pytest.param("{a: " * 5_000 + "1" + "}" * 5_000, "line 1 .*deep", id="maps in maps"),
    pytest.param("".join(" " * n + "a:\n" for n in range(200)), "line [0-9]+ .*deep", id="indented maps"),
    pytest.param("- " * 10_000 + "1", "line 1 .*deep", id="lists in a line"),
    pytest.param("a: [" + "1," * 50_000 + "]", "line 1 .*keys and values", id="a long list"),
    pytest.param("worker: {count: !!python/object/apply:os.system [ls]}", "line 1 .*begins with ! is", id="python"),
    pytest.param("redis:\n  password: !vault abc", "line 2 .*begins with ! is a tag", id="a tag of another program"),
    pytest.param("worker:\n\tcount: 3", "line 2 ", id="a tab"),
    pytest.param("worker: {count: 3", "line [12] ", id="an open brace"),
    pytest.param("worker: *nothing", "line 1 .*undefined alias", id="an alias of nothing"),
    pytest.param("a: 1\n---\nb: 2\n", "line [0-9]+ .*not YAML", id="two documents"),
    pytest.param("worker: {<<: 3}", "line 1", id="a merge of a number"),
    pytest.param("worker:\n  count: 1\n  count: 2\n", "line [0-9].*written twice", id="a key twice"),
    pytest.param("a: \x07\n", "not YAML", id="a control character"),
]


def read(text: str | bytes, tmp_path: Path) -> None:
    file = tmp_path / "wrasse.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    load(file, environ={})


@pytest.mark.parametrize(("text", "told"), HOSTILE)
def test_a_hostile_file_is_refused_with_its_line(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        read(text, tmp_path)


@pytest.mark.parametrize("mark", "!&*%@`|>{[-?:,#'\"")
def test_a_password_that_yaml_takes_for_something_else_is_not_shown(mark: str, tmp_path: Path) -> None:
    told = ""
    try:
        read(f"redis:\n  password: {mark}Xk9vLmQ2wE\n", tmp_path)
    except ConfigError as error:
        told = f"{error} {error.do}"
    assert "Xk9vLmQ2wE" not in told


@pytest.mark.parametrize("data", [b"\xff\xfe", "worker: {count: 3}".encode("utf-16"), b"a: \xc3\x28"])
def test_a_file_that_is_not_utf_8_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not UTF-8 at byte"):
        read(data, tmp_path)


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"longer than {BYTES_MAX}"):
        load("/dev/zero", environ={})


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "wrasse.yaml"
    file.write_bytes(b"\xef\xbb\xbfworker:\r\n  count: 3\r\n")
    assert load(file, environ={}).settings.worker.count == 3


def test_aliases_and_merges_of_a_usual_size_are_read(tmp_path: Path) -> None:
    file = tmp_path / "wrasse.yaml"
    file.write_text("archival: [&s {stream: a.b, batch_size: 7}, {<<: *s, stream: c.d}]\n")
    read = load(file, environ={}).settings.archival
    assert [(each.stream, each.batch_size) for each in read] == [("a.b", 7), ("c.d", 7)]


def test_a_value_that_only_looks_like_a_date_or_a_number_is_a_mistake(tmp_path: Path) -> None:
    for value in ("2001-99-99", "!!int abc", "2001-01-01 99:99:99"):
        with pytest.raises(ConfigError):
            read(f"sweeps: {{mine: {{use: 'json:loads', a: {value}}}}}\nworker: {{count: {value}}}", tmp_path)


def collections(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lists = st.lists(inner, max_size=4).map(lambda items: "[" + ", ".join(items) + "]")
    pairs = st.tuples(inner, inner).map(": ".join)
    return lists | st.lists(pairs, max_size=4).map(lambda items: "{" + ", ".join(items) + "}")


@given(st.recursive(st.sampled_from(["1", "a", "*x", "&x b", "!t c", "~", "<<", "''"]), collections, max_leaves=30))
def test_any_text_is_nodes_or_a_yaml_error(text: str) -> None:
    try:
        node = parse_yaml(text)
    except yaml.YAMLError:
        return
    assert node is None or isinstance(node, yaml.Node)


@given(st.binary(max_size=300))
def test_any_bytes_are_nodes_or_an_error(data: bytes) -> None:
    try:
        node = parse_yaml(data.decode("latin-1"))
    except yaml.YAMLError:
        return
    assert node is None or isinstance(node, yaml.Node)


def test_no_hostile_file_costs_much_memory_or_time(tmp_path: Path) -> None:
    files = []
    for number, (text, _) in enumerate(each.values for each in HOSTILE):
        files.append(str(tmp_path / f"{number}.yaml"))
        Path(files[-1]).write_text(str(text))
    script = """if True:
        import resource, sys
        from wrasse.config.load import load
        from wrasse.errors import ConfigError
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
        for name in sys.argv[1:]:
            try:
                load(name, environ={})
            except ConfigError:
                continue
            sys.exit(name)
    """
    done = subprocess.run([sys.executable, "-c", script, *files], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
