"""Four processes play Pong and send what they saw and did to one learner, through a queue.

Each message is a rollout: a bundle of 32 screens, the actions and the rewards, 3.2 MB. Full, the
queue holds the actors back. The other way weights go by name: the learner puts a new policy after
each rollout, an actor gets the newest before each of its own. (The learning is real, one step of
REINFORCE a time, but Pong takes longer than this program.) In the end the learner plays all
recorded actions itself: every screen must be the same. `rollouts.py 5`: 5 rollouts per actor.
"""

import os
import sys
import time
import zlib
from collections import defaultdict
from multiprocessing import get_context

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # per process; NumPy looks when it is imported

import numpy as np
from ale_py import ALEInterface, LoggerMode, roms
from checks import is_freed, verdict

import tensorcx as cx

ACTORS = 4
STEPS = 32  # of a rollout
SCREEN = (210, 160, 3)
MOVES = (0, 3, 4)  # stay, up, down


class Pong:
    """The game as its first player sees it; the same seed and moves give the same screens."""

    def __init__(self, seed: int) -> None:
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self.game = ALEInterface()
        self.game.setInt("random_seed", seed)
        self.game.loadROM(roms.get_rom_path("pong"))

    def screen(self, pixels: np.ndarray) -> None:
        self.game.getScreenRGB(pixels)

    def move(self, move: int) -> float:
        """Plays for four frames; the points won or lost."""
        if self.game.game_over():
            self.game.reset_game()
        return float(sum(self.game.act(MOVES[move]) for _ in range(4)))


# --- the policy: a linear one, on how the screen has changed --------------------------------------


def features(screens: np.ndarray) -> np.ndarray:
    """Of each screen the change since the one before, 40 x 40."""
    small = screens[:, 34:194:4, ::4, 1].astype("float32").reshape(len(screens), -1) / 255
    return np.diff(small, axis=0, prepend=small[:1])


def probabilities(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    scores = np.exp(x @ weights)
    return scores / scores.sum(axis=-1, keepdims=True)


def improved(weights: np.ndarray, rollout: cx.Bundle) -> np.ndarray:
    """One step of REINFORCE: what was done before a point won becomes more likely."""
    x = features(np.asarray(rollout["screens"]))
    gain = np.zeros(STEPS, "float32")
    later = 0.0
    for t in reversed(range(STEPS)):
        gain[t] = later = rollout["rewards"].numpy()[t] + 0.97 * later
    surprise = np.eye(len(MOVES), dtype="float32")[rollout["moves"]] - probabilities(weights, x)
    return weights + 0.01 * x.T @ (surprise * gain[:, None])


# --- the processes --------------------------------------------------------------------------------


def act(rollouts: cx.Queue, policy: str, actor: int, count: int) -> None:
    pong, random = Pong(seed=actor), np.random.default_rng(actor)
    screens = np.empty((STEPS, *SCREEN), "uint8")
    moves, rewards = np.empty(STEPS, "int64"), np.empty(STEPS, "float32")
    for number in range(count):
        weights = cx.get(policy)
        for t in range(STEPS):
            pong.screen(screens[t])
            x = features(screens[max(t - 1, 0) : t + 1])[-1]
            moves[t] = random.choice(len(MOVES), p=probabilities(np.asarray(weights), x))
            rewards[t] = pong.move(moves[t])
        made_by = {"actor": actor, "number": number, "policy": weights.version}
        rollout = {**made_by, "screens": screens, "moves": moves, "rewards": rewards}
        rollouts.send(rollout, timeout=60)  # one copy; waits while the queue is full


class Learner:
    """Takes rollouts, puts policies, and keeps of what came what it takes to check it."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.weights = np.zeros((1600, len(MOVES)), "float32")
        self.versions = [cx.put(policy, self.weights).version]
        self.numbers: dict[int, list[int]] = defaultdict(list)  # of each actor's rollouts
        self.moves: dict[int, list[int]] = defaultdict(list)
        self.checksums: dict[int, list[int]] = defaultdict(list)  # of all screens
        self.ages: list[int] = []  # how many policies were put since that of the rollout
        self.points = 0.0

    def learn(self, rollout: cx.Bundle) -> None:
        actor = rollout["actor"].item()
        self.numbers[actor].append(rollout["number"].item())
        self.moves[actor] += rollout["moves"].tolist()
        self.checksums[actor] += map(zlib.crc32, np.asarray(rollout["screens"]))
        self.ages.append(len(self.versions) - 1 - self.versions.index(rollout["policy"].item()))
        self.points += float(np.abs(rollout["rewards"]).sum())
        self.weights = improved(self.weights, rollout)
        self.versions.append(cx.put(self.policy, self.weights).version)

    def is_replayed(self, actor: int) -> bool:
        """Whether the actor's moves lead to the same screens here."""
        pong, screen = Pong(seed=actor), np.empty(SCREEN, "uint8")
        for move, checksum in zip(self.moves[actor], self.checksums[actor], strict=True):
            pong.screen(screen)
            if zlib.crc32(screen) != checksum:
                return False
            pong.move(move)
        return True


def train(rollouts: cx.Queue, policy: str, count: int) -> dict[str, bool]:
    learner = Learner(policy)
    spawn = get_context("spawn")
    arguments = [(rollouts, policy, actor, count) for actor in range(ACTORS)]
    actors = [spawn.Process(target=act, args=each, daemon=True) for each in arguments]
    for actor in actors:
        actor.start()
    start, waited = 0.0, 0.0
    for i in range(ACTORS * count):
        before = time.monotonic()
        rollout = rollouts.recv(timeout=60)
        start = start or time.monotonic()
        waited += time.monotonic() - before if i else 0
        learner.learn(rollout)
    seconds = time.monotonic() - start
    for actor in actors:
        actor.join()

    stats = rollouts.stats()
    total = stats["messages"] * STEPS
    print(
        f"{total} steps of {ACTORS} actors in {seconds:.1f} s, {learner.points:.0f} points played"
    )
    print(
        f"{stats['messages']} rollouts of {stats['buffer_bytes'] / 1e6:.1f} MB; the learner waited"
        f" {waited:.1f} s for them; {stats['buffers']} buffers, {stats['bytes'] / 1e6:.0f} MB"
    )
    print(
        f"{len(learner.versions)} policies; a rollout was made with one that was"
        f" {np.median(learner.ages):.0f} (median), at most {max(learner.ages)} puts old"
    )
    everyone = range(ACTORS)
    return {
        "each rollout came once, in its actor's order": all(
            learner.numbers[actor] == list(range(count)) for actor in everyone
        ),
        "played again, all screens are the same": all(map(learner.is_replayed, everyone)),
    }


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    name, held = f"examples/rollouts-{os.getpid()}", cx.stats()["bytes"]
    try:
        with cx.queue(name, capacity=8) as rollouts:
            checks = train(rollouts, f"{name}/policy", count)
    finally:
        cx.delete(f"{name}/policy")
    checks["all memory is free again"] = is_freed(held)
    return verdict(checks)


if __name__ == "__main__":
    sys.exit(main())
