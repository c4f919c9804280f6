"""What happens at a step of an operation: SIGKILL, SIGSTOP, of a client or of the daemon.

What must be true each time: the others' data is whole byte for byte and their calls go on, the
daemon's counts come right, who comes next finds everything in order, and nothing remains.
"""

import contextlib
import signal
import tempfile

import pytest
from daemon import settle
from repertoire import CHILD_DIED
from steps import NAMES, words
from wire_table import Status

TRIES = 10


# -------------------------------------------------------------------------------- which moments


def count_all(make_stage, operations, *options):
    """Which steps each operation reaches, and how often: {operation: {side: {step: count}}}."""
    with (
        tempfile.TemporaryDirectory(prefix="tcx-") as folder,
        make_stage(folder, *options) as stage,
    ):
        found = {operation: count(stage, operation) for operation in operations}
        stage.close()
    return found


def count(stage, operation):
    with stage.client() as client:
        stage.prepare(client, operation)
        client.accidents.begin()
        stage.plan.begin()
        assert play(client, operation) == [(0, "")] * 3
        client.finish()
        stage.rest()
        reached = {"client": client.accidents.hits(), "daemon": stage.plan.hits()}
    stage.is_as_before()
    return reached


def first_to_reach(hits, operation, do, steps=NAMES):
    """Those of these steps that no operation before this one reaches."""
    side = SIDE[do]
    before = list(hits)[: list(hits).index(operation)]
    known = {step for earlier in before for step in hits[earlier][side]}
    return [(s, 1) for s in hits[operation][side] if s in steps and s not in known]


def each_time(hits, operation, do):
    """The first and the last time that it reaches each."""
    counts = hits[operation][SIDE[do]]
    return [(step, at) for step, n in counts.items() for at in sorted({1, n})]


# --------------------------------------------------------------------------------- at each of them


def go_through(stage, operation, moments, do):
    """Who comes next is served: by the next moment up to its step, and after the last in full."""
    for step, at in moments:
        try:
            until_it_comes(stage, operation, step, at, do)
        except AssertionError as error:
            raise AssertionError(f"{operation}, {step} the {at}. time") from error
    if moments:
        serves_the_next(stage, operation)


def until_it_comes(stage, operation, step, at, do):
    """Whether a step comes may depend on who is faster: then it is tried again. How often it comes
    may, too: then the last time need not come."""
    for _ in range(TRIES):
        comes = do(stage, operation, step, at)
        stage.is_as_before()
        if comes or at > 1:
            return
    raise AssertionError(f"in {TRIES} tries it does not come again")


def play(client, operation):
    """What came of its words, up to one that it died of."""
    said = []
    for word in words(operation):
        said.append(client.do_or_die(word))
        if said[-1] is None:
            break
    return said


def serves_the_next(stage, operation):
    with stage.client() as client:
        client.prepare(operation)
        assert play(client, operation) == [(0, "")] * 3
        client.finish()
    stage.rest()


def kill_client(stage, operation, step, at):
    with stage.client() as client:
        stage.prepare(client, operation)
        client.accidents.begin(step, at)
        stage.worker.tell("work")
        said = play(client, operation)
        stage.go_on()
        assert stage.worker.answer() == (0, "")
        assert said[0] is None or said[0][0] in (Status.OK, CHILD_DIED)
        comes = happens(client.accidents, at)
    stage.has_outcome(operation, was_killed=True)
    return comes


def stop_client(stage, operation, step, at):
    """The others neither notice nor wait; nor does it, when it goes on."""
    with stage.client() as client:
        stage.prepare(client, operation)
        client.accidents.begin(step, at, signal.SIGSTOP)
        for word in words(operation):
            client.tell(word)
            if stops(client, client.accidents):
                stage.go_on()
                stage.others_go_on(client.accidents)
                client.accidents.resume()
            assert client.answer() == (0, "")
        if not client.accidents.has_come and happens(client.accidents, at):
            settle(client.accidents.has_stopped)
            stage.others_go_on(client.accidents)
            client.accidents.resume()
        client.finish()
        comes = client.accidents.end()
    stage.has_outcome(operation, was_killed=False)
    return comes


def stops(client, plan):
    """Waits until `client` has answered, or somebody is stopped as planned. Whether it is that."""
    settle(lambda: plan.has_stopped() or client.has_answered())
    return plan.has_stopped()


def kill_daemon(stage, operation, step, at):
    """What is mapped stays as it was; all find the next one."""
    with stage.client() as client:
        stage.prepare(client, operation)
        stage.plan.begin(step, at)
        said = play(client, operation)
        assert said[0][0] in (Status.OK, Status.LOST, Status.UNAVAILABLE, CHILD_DIED)
        assert said[1:] == [(0, "")] * 2
        comes = happens(stage.plan, at)
        if comes:
            assert stage.daemon.process.wait() == -signal.SIGKILL
            find_next_daemon(stage)
        client.finish()
        return comes


def find_next_daemon(stage):
    for witness in stage.witnesses:
        witness.must("check")
    stage.start()
    for witness in stage.witnesses:
        find_successor(witness)


def find_successor(witness):
    settle(lambda: witness.do("look")[0] in (Status.LOST, Status.NOT_FOUND), "no old daemon")
    witness.must("work")
    witness.must("check")
    witness.must("hold")


def happens(plan, at):
    """Waits for what is planned, which may come after all that a client has been told."""
    with contextlib.suppress(AssertionError):
        settle(plan.happened, deadline=5 if at == 1 else 1)
    return plan.end()


def stop_daemon(stage, operation, step, at):
    """Who does not wait is told so; who does, gets its answer when it goes on."""
    with stage.client() as client:
        stage.prepare(client, operation)
        stage.plan.begin(step, at, signal.SIGSTOP)
        for word in words(operation):
            client.tell(word)
            if stops(client, stage.plan):
                wait_for_daemon(stage)
            assert client.answer() == (0, "")
        client.finish()
        if not stage.plan.has_come and happens(stage.plan, at):
            wait_for_daemon(stage)
        comes = stage.plan.end()
    stage.has_outcome(operation, was_killed=False)
    return comes


def wait_for_daemon(stage):
    settle(stage.plan.has_stopped)
    stage.worker.tell("work")
    status, text = stage.impatient.do("work")
    assert status == Status.TIMEOUT and text
    stage.keeper.must("check")
    stage.members_go_on(stage.plan)
    stage.plan.resume()
    assert stage.worker.answer() == (0, "")
    stage.impatient.must("work")


# Who reaches the step.
SIDE = {
    kill_client: "client",
    stop_client: "client",
    kill_daemon: "daemon",
    stop_daemon: "daemon",
}
each_accident = pytest.mark.parametrize("do", SIDE)
