import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from deepinfer.errors import RequestError
from deepinfer.grammar import Compiler, Constraint, Grammar, Limits, WorkerLost
from tests.grammar.vocabularies import encode, satisfies, vocabulary


@pytest.fixture(scope="module")
def others() -> set[int]:
    """Processes that other tests left; asked for before anything here starts one."""
    return set(children())


@pytest.fixture(scope="module")
def compiler(others: set[int]) -> Iterator[Compiler]:
    with Compiler(vocabulary(), workers=1) as one:
        yield one


def refusal(future: Future[Grammar]) -> str:
    error = future.exception(timeout=60)
    assert isinstance(error, RequestError)
    return str(error)


def object_of(count: int) -> str:
    properties = ",".join(f'"p{i}":{{"type":"string","pattern":"x{i}y*"}}' for i in range(count))
    return f'{{"type":"object","properties":{{{properties}}}}}'


def test_grammar_of_a_worker_is_that_of_the_front_end(compiler):
    grammar = compiler.submit(Constraint("regex", "[0-9]{2}")).result(60)
    assert satisfies(grammar, encode("42"))
    assert not satisfies(grammar, encode("4"))


def test_equal_constraints_are_compiled_once_and_refusals_are_remembered(compiler):
    one = compiler.submit(Constraint("regex", "once"))
    assert compiler.submit(Constraint("regex", "once")) is one
    broken = compiler.submit(Constraint("regex", "(once"))
    assert "unclosed group" in refusal(broken)
    assert compiler.submit(Constraint("regex", "(once")) is broken


def test_cache_forgets_what_was_used_last_the_longest_time_ago():
    with Compiler(vocabulary(), cached=2) as small:
        first, second, third = (Constraint("choice", f'["{n}"]') for n in "abc")
        future = small.submit(first)
        small.submit(second).result(60)
        assert small.submit(first) is future
        small.submit(third).result(60)
        assert small.submit(first) is future
        assert small.submit(second).result(60) is not None


def test_killed_worker_costs_only_the_compile_it_was_at(others, compiler):
    slow = Constraint("json_schema", object_of(1_000))
    future = compiler.submit(slow)
    waiting = compiler.submit(Constraint("regex", "after"))
    (process,) = set(children()) - others
    while not future.running():
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(process, signal.SIGKILL)
    assert "ended with SIGKILL" in refusal(future)
    assert isinstance(future.exception(), WorkerLost)
    assert satisfies(waiting.result(60), encode("after"))
    # It is not remembered: another attempt is made.
    again = compiler.submit(slow)
    assert again is not future
    assert satisfies(again.result(60), encode("{}"))


def test_worker_that_was_killed_while_idle_costs_nothing(others, compiler):
    assert compiler.submit(Constraint("regex", "before")).result(60)
    (process,) = set(children()) - others
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert compiler.submit(Constraint("regex", "afterwards")).result(60)
    assert process not in children()


def children() -> list[int]:
    """Processes that were started by any thread of this one."""
    lists = [task / "children" for task in Path("/proc/self/task").iterdir()]
    return [int(pid) for one in lists if one.exists() for pid in one.read_text().split()]


def test_time_limit_ends_a_compilation_and_a_check():
    with Compiler(vocabulary(), limits=Limits(compile_seconds=0.6)) as hasty:
        assert hasty.submit(Constraint("regex", "ok")).result(60)
        started = time.monotonic()
        assert "not compiled within 0.6 s" in refusal(
            hasty.submit(Constraint("json_schema", object_of(6_000)))
        )
        assert time.monotonic() - started < 10
        pattern = Constraint("json_schema", '{"pattern": "^(a+)+$"}')
        assert "could not be checked" in hasty.check(pattern, f'"{"a" * 40}b"').result(60)
        assert hasty.check(pattern, '"aaa"').result(60) == ""
        assert "does not match" in hasty.check(pattern, '"b"').result(60)


def test_memory_limit_ends_a_compilation():
    with Compiler(vocabulary(), limits=Limits(compile_bytes=8 << 20)) as poor:
        values = ",".join(map(str, range(100_000)))
        reason = refusal(poor.submit(Constraint("json_schema", f'{{"enum":[{values}]}}')))
        assert "ended with" in reason or "it needs more than" in reason
        assert poor.submit(Constraint("regex", "ok")).result(60)


HOSTILE = [
    Constraint("regex", "(" * 20_000 + "a" + ")" * 20_000),
    Constraint("regex", "(" * 190 + "a" + ")*" * 190),
    Constraint("regex", "((((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}){1,1000})"),
    Constraint("regex", "(.*a){25}"),
    Constraint("regex", "[ab]*a[ab]{300}c"),
    Constraint("regex", "(a|aa)+$"),
    Constraint("regex", "a|" * 100_000 + "b"),
    Constraint("ebnf", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
    Constraint("ebnf", 'root ::= "a"{1,100000} root | "b"'),
    Constraint("ebnf", 'root ::= ("(" root ")"){1,100000} | "b"'),
    Constraint("ebnf", "\n".join(f"r{i} ::= r{i + 1}" for i in range(998)) + '\nr998 ::= "a" | root'
               + "\nroot ::= r0"),
    Constraint("ebnf", "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(200))
               + '\nr200 ::= "a"\nroot ::= r0'),
    Constraint("ebnf", "root ::= " + " | ".join(f'"a{i}" root "c"' for i in range(300)) + ' | "b"'),
    Constraint("ebnf", "x" * (1 << 20)),
    Constraint("json_schema", "[" * 100_000),
    Constraint("json_schema", '{"items":' * 60 + "{}" + "}" * 60),
    Constraint("json_schema", '{"enum":[' + ",".join(map(str, range(20_000))) + "]}"),
    Constraint("json_schema", '{"enum":["' + "x" * 1_000_000 + '"]}'),
    Constraint("json_schema", '{"pattern": "' + "(a*)*" * 100 + '", "maxLength": 1000000}'),
    Constraint("json_schema", '{"type": "string", "minLength": 1000000}'),
    Constraint("json_schema", '{"type": "array", "minItems": 1000000000, "items": {"const": 1}}'),
    Constraint("json_schema", '{"$defs": {' + ",".join(
        f'"d{i}": {{"anyOf": [{{"$ref": "#/$defs/d{i + 1}"}}, {{"$ref": "#/$defs/d{i + 1}"}}]}}'
        for i in range(60)) + ', "d60": {"type": "integer"}}, "$ref": "#/$defs/d0"}'),
    Constraint("json_schema", '{"allOf": [' + ",".join(
        f'{{"properties": {{"a{i}": {{}}}}}}' for i in range(200)) + "]}"),
    Constraint("choice", str([("a" * 100 + str(i)) for i in range(3_000)]).replace("'", '"')),
]  # fmt: skip


def test_hostile_input_ends_within_the_limits_and_leaves_the_worker_usable(compiler):
    for constraint in HOSTILE:
        started = time.monotonic()
        error = compiler.submit(constraint).exception(60)
        assert error is None or isinstance(error, RequestError)
        assert len(str(error)) < 1_000
        # The time limit once in the worker, its grace, and a build of the same length here.
        most = 2 * Limits().compile_seconds + 4
        assert time.monotonic() - started < most, constraint.source[:80]
    assert compiler.submit(Constraint("regex", "still here")).result(60)


def test_workers_work_side_by_side():
    with Compiler(vocabulary(), workers=2) as pair:
        slow = pair.submit(Constraint("json_schema", object_of(5_000)))
        quick = [pair.submit(Constraint("regex", f"q{n}")) for n in range(5)]
        for future in quick:
            assert future.result(60)
        assert not slow.done()


def test_closing_ends_the_processes():
    before = set(children())
    compiler = Compiler(vocabulary(), workers=2)
    compiler.submit(Constraint("regex", "a")).result(60)
    assert len(set(children()) - before) == 2
    compiler.close()
    compiler.close()
    assert set(children()) <= before


def test_worker_ends_with_the_process_that_started_it():
    script = (
        "import os, sys; sys.path.insert(0, os.getcwd())\n"
        "from deepinfer.grammar import Compiler\n"
        "from tests.grammar.test_compiler import children\n"
        "from tests.grammar.vocabularies import vocabulary\n"
        "compiler = Compiler(vocabulary())\n"
        "print(*children(), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    pid = int(done.stdout)
    for _ in range(500):
        if not os.path.exists(f"/proc/{pid}"):
            return
        time.sleep(0.02)
    pytest.fail(f"worker {pid} is still there")
