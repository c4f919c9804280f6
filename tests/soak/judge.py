"""What operations choose by, and what they are judged by."""

import random

from model import Cell, Thing, nbytes_of

DTYPES = ["<f4", "<i4", "|u1", "<f8", "<c8", "<i2", "<f2", "<u8"]
SIZES = [(8, 600), (600, 60_000), (60_000, 1 << 20), (8 << 20, 20 << 20)]
WEIGHTS = [50, 30, 12, 1]


class Judge:
    """What every operation needs: chance, the model, and a way to say what is wrong."""

    def __init__(self, model, seed: int, capacity: int):
        self.model, self.capacity = model, capacity
        self.ghosts = 0  # tickets that were made perhaps, and that nobody has
        self.rng = random.Random(seed)

    def fail(self, me, what: str):
        raise NotImplementedError

    def require(self, condition, me, what):
        if not condition:
            self.fail(me, what)

    def cell(self, sizes=WEIGHTS, number=None) -> Cell:
        low, high = self.rng.choices(SIZES, sizes)[0]
        dtype = self.rng.choice(DTYPES)
        itemsize = int(dtype[2:])
        count = max(8 // itemsize, self.rng.randrange(low, high) // itemsize)
        rows = self.rng.choice([1, 1, 2, 4])
        shape = (count,) if rows == 1 or count < rows else (rows, count // rows)
        number = next(self.model.numbers) if number is None else number
        cell = Cell(number, dtype, shape)
        return cell if nbytes_of(cell) >= 8 else Cell(number, "<f8", (1,))

    def shortage(self, me, error, asked=0, device=False):
        """Whether it is OutOfMemory, which must be true."""
        if error != "OutOfMemory":
            return False
        used = sum(s.nbytes for s in self.model.alive() if not s.on_device)
        enough = used + self.under_way() + asked < self.capacity * 0.4
        self.require(device or not enough, me, f"OutOfMemory, with {used} bytes in use")
        return True

    def under_way(self) -> int:
        """Bytes that are being asked for."""
        return 0

    def one_of(self, some):
        return self.rng.choice(some) if some else None

    def on_device(self, me):
        return me.uses_cuda and self.rng.random() < 0.2

    def name(self, me, waited=False, prefixes=("n/", "e/", "t/", "d/")):
        """One that may be used now; with `waited` rather one that somebody waits for."""
        usable = [
            (text, name)
            for text, name in self.model.names.items()
            if name.users >= 0 and text.startswith(prefixes) and (me.uses_cuda or text[0] != "d")
        ]
        wanted = [each for each in usable if each[1].waiters] if waited else []
        return self.rng.choice(wanted if wanted and self.rng.random() < 0.3 else usable)

    def shows(self, me, what, shown, thing: Thing):
        """That a member has seen this thing, in these storages."""
        self.sees(me, what, [leaf[1] for leaf in shown["leaves"]], thing)
        wrong = self.model.settle(thing, shown["ids"])
        self.require(not wrong, me, f"{what}: {wrong}")

    def sees(self, me, what, seen, thing):
        wanted = thing.shows()
        self.require(seen == wanted, me, f"{what}: shows {seen}, not {wanted}")
