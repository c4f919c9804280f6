"""What happens at a step of an operation: SIGKILL, SIGSTOP, of a client or of the daemon.

What must be true each time: the others' data is whole byte for byte and their calls go on, the
daemon's counts come right, who comes next finds everything in order, and nothing remains.
"""

import contextlib
import signal

from daemon import settle
from steps import words
from wire_table import Status

CHILD_DIED = 100  # operations.c
TRIES = 10


# -------------------------------------------------------------------------------- which moments


def count_all(stage, operations):
    """Which steps each operation reaches, and how often: {operation: {side: {step: count}}}."""
    return {operation: count(stage, operation) for operation in operations}


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


def first_to_reach(hits, operation, side):
    """The steps that no operation before this one reaches."""
    before = list(hits)[: list(hits).index(operation)]
    known = {step for earlier in before for step in hits[earlier][side]}
    return [(step, 1) for step in hits[operation][side] if step not in known]


def each_time(hits, operation, side):
    """The first and the last time that it reaches each."""
    return [(step, at) for step, n in hits[operation][side].items() for at in sorted({1, n})]


# --------------------------------------------------------------------------------- at each of them


def each_moment(stage, operation, moments, do):
    go_through(stage, operation, moments, do)
    stage.close()


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
        return happens(client.accidents, at)


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
        return client.accidents.end()


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
            for witness in stage.witnesses:
                witness.must("check")
            stage.start()
            for witness in stage.witnesses:
                find_successor(witness)
        client.finish()
        return comes


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
        return stage.plan.end()


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
