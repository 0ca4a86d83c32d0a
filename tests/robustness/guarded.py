"""Inputs tried in a process of its own, which may crash, hang or take memory: all are counted."""

import multiprocessing
import os
import resource
import signal
import traceback
from collections import Counter

from segcal.types import UserError

SECONDS = 20
MEGABYTES = 4096
N = int(os.environ.get("SEGCAL_FUZZ", "2000"))
"""How many inputs all fuzzers together try; `make fuzz N=20000` sets it."""


def share(part):
    """How many inputs a fuzzer tries, as a share of all."""
    return max(1, int(N * part))


def outcomes_of(trial, seeds):
    """What became of `trial(seed)` for each seed: the numbers, and the faults with their seeds.

    A trial returns a word, such as "refused" or "read"; words that begin with "fault" are faults,
    as are exceptions but `UserError`, crashes, hangs of 20 s, and memory above 4 GB."""
    waiting, counts, faults = list(seeds), Counter(), []
    while waiting:
        done = 0
        for word in _in_a_process(trial, waiting):
            if word.startswith("fault"):
                faults.append((waiting[done], word))
            counts[word.split(":")[0]] += 1
            done += 1
        waiting = waiting[done:]
    return counts, faults


def _in_a_process(trial, seeds):
    """A word for each seed, up to the first one that ends the process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(trial, seeds, sender))
    process.start()
    sender.close()
    try:
        for _ in seeds:
            if not receiver.poll(SECONDS):
                yield f"fault: hangs for {SECONDS} s"
                return
            try:
                word = receiver.recv()
            except EOFError:
                process.join()
                yield f"fault: ended with code {process.exitcode}"
                return
            yield word
    finally:
        process.kill()
        process.join()
        receiver.close()


def _work(trial, seeds, sender):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # ITK prints
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in seeds:
        try:
            word = trial(seed)
        except UserError as error:
            word = "fault: two lines" if "\n" in str(error) else "refused"
        except BaseException:
            word = f"fault: {traceback.format_exc()}"
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        sender.send(f"fault: took {taken} KB" if taken > MEGABYTES << 10 else word)
        if taken > MEGABYTES << 10:
            break
    sender.close()
    os._exit(0)
