"""The process that reads constraints: it may hang, run out of memory or crash, and only it dies.

It answers one job after the other on a pipe, each within a time after which the kernel ends it. It
does not know who asks.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import cast

import numpy as np

from deepinfer.errors import RequestError
from deepinfer.grammar.constraint import Constraint
from deepinfer.grammar.finished import check_finished
from deepinfer.grammar.front import translate
from deepinfer.grammar.limits import Limits
from deepinfer.grammar.matcher import Grammar
from deepinfer.grammar.vocabulary import Vocabulary

# Smaller than the stack of any thread that builds the same grammar in the engine afterwards: what
# nests too deep ends here.
_STACK_BYTES = 4 << 20

Answer = dict[str, str]


def run_worker(pipe: Connection) -> None:
    """Serve jobs until the other end closes.

    The first message is the vocabulary and the limits; a job is a list: "compile" and the fields of
    a `Constraint`, or "check", the same and the finished text. The answer has "translated" or
    "checked", or "refused" with the reason.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    first = json.loads(pipe.recv_bytes())
    limits = Limits(**first["limits"])
    vocabulary = Vocabulary(first["tokenizer_json"], first["size"], first["end_ids"])
    pipe.send_bytes(b"{}")
    _limit_memory(limits.compile_bytes)
    while True:
        try:
            job = cast("list[object]", json.loads(pipe.recv_bytes()))
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, limits.compile_seconds)
        answer = _answer(job, vocabulary, limits)
        signal.setitimer(signal.ITIMER_REAL, 0)
        pipe.send_bytes(json.dumps(answer).encode())


def _answer(job: list[object], vocabulary: Vocabulary, limits: Limits) -> Answer:
    constraint = Constraint(**cast("dict[str, str]", job[1]))  # type: ignore[arg-type]
    try:
        if job[0] == "check":
            return {"checked": check_finished(constraint, cast(str, job[2]))}
        translated = translate(constraint, vocabulary, limits)
        matcher = Grammar(constraint, vocabulary, translated, limits=limits).matcher()
        # What is too complex for a mask often shows in the first one.
        if not matcher.fill_mask(np.zeros(vocabulary.words, np.int32)):
            return {"refused": f"{constraint.kind}: no text satisfies it"}
    except RequestError as error:
        return {"refused": str(error)}
    except RecursionError:
        return {"refused": f"{constraint.kind}: it nests too deep"}
    except MemoryError:
        return {"refused": f"{constraint.kind}: it needs more than {limits.compile_bytes} bytes"}
    return {"translated": translated}


def _limit_memory(more_bytes: int) -> None:
    """Let the address space grow by `more_bytes` from here."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[0])
    most = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    """Serve on the pipe whose file descriptor is the second argument of the process."""
    threading.stack_size(_STACK_BYTES)
    sys.set_int_max_str_digits(0)  # of a finished text; the time limit guards against long ones
    thread = threading.Thread(target=run_worker, args=[Connection(int(sys.argv[2]))])
    thread.start()
    thread.join()
