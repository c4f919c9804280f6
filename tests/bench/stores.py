"""The contenders: each puts, gets and deletes named arrays in the way its documentation tells.

A worker process (worker.py) owns one Store. start() begins the server, where there is one, and
opens; open() joins what another process has started.
"""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np


class Store:
    server = None  # its process, if start() began one

    def version(self) -> str:
        raise NotImplementedError

    def start(self, folder, cpu, *options) -> str:
        """Begins the server on `cpu`, its files in `folder`. Returns the address for open()."""
        self.open(folder)
        return folder

    def open(self, address):
        pass

    def put(self, name, array):
        """Copies `array` into shared memory. Returns what delete() and key() need."""
        raise NotImplementedError

    def delete(self, name, handle):
        raise NotImplementedError

    def key(self, name, handle):
        """What another process needs to get it, as JSON."""
        return name

    def get(self, key):
        """Returns the array, and what keeps it mapped."""
        raise NotImplementedError

    def drop(self, handle):
        """Lets go of what get() gave."""

    def context(self):
        """The multiprocessing whose queue it is handed over by."""
        import multiprocessing

        return multiprocessing.get_context("spawn")

    def fresh(self, name, array):
        """What send() needs to hand over an array that nobody else has yet."""
        return self.put(name, array)

    def message(self, name, handle):
        """What goes into the queue."""
        return self.key(name, handle)

    def receive(self, message):
        """The other end; as get()."""
        return self.get(message)

    def send(self, queue, name, handle):
        queue.put(self.message(name, handle))

    def take(self, queue, name):
        """What was sent under `name`; as get()."""
        return self.receive(queue.get())

    def check_shared(self, name):
        """Fails unless what receive() gave last is the very memory of `name`."""

    def exchanges(self) -> dict:
        """DLPack within one process: what it is called -> a function to call."""
        raise NotImplementedError

    def close(self):
        if self.server:
            self.server.terminate()
            self.server.wait()

    def serve(self, command, cpu, socket, log):
        """Runs a server on `cpu` until close(), and waits for its socket."""
        with open(log, "wb") as output:
            self.server = subprocess.Popen(
                ["taskset", "-c", str(cpu), *command], stdout=output, stderr=output
            )
        while not os.path.exists(socket):
            if self.server.poll() is not None:
                raise RuntimeError(f"{command[0]} ended: {Path(log).read_text()}")
            time.sleep(0.01)


class Reference(Store):
    """Nobody: the bare queue, which carries a description of an array, and NumPy's own exchange."""

    def version(self):
        return f"Python {sys.version.split()[0]}, NumPy {np.__version__}"

    def put(self, name, array):
        return name, array.shape, array.dtype.str

    def delete(self, name, handle):
        pass

    def message(self, name, handle):
        return handle

    def receive(self, message):
        return None, None

    def exchanges(self):
        array = np.zeros(1024, "f4")
        return {"np.from_dlpack(ndarray)": lambda: np.from_dlpack(array)}


class Tensorcx(Store):
    sent = None  # the tensor that goes into the queue, as a program would keep it

    def version(self):
        import tensorcx

        return tensorcx.__version__

    def start(self, folder, cpu, *options):
        import tensorcx

        program = Path(tensorcx.__file__).parent / "lib" / "tensorcxd"
        socket = f"{folder}/d.sock"
        command = [program, "--socket", socket, "--log-level", "warn", *options]
        self.serve(command, cpu, socket, f"{folder}/log")
        self.open(socket)
        return socket

    def open(self, address):
        import tensorcx

        os.environ["TENSORCX_SOCKET"] = address
        self.client = tensorcx.connect()

    def put(self, name, array):
        self.client.put(name, array)

    def delete(self, name, handle):
        self.sent = None
        self.client.delete(name)

    def get(self, key):
        return np.asarray(self.client.get(key)), None

    def message(self, name, handle):
        if self.sent is None or self.sent.name != name:
            self.sent = self.client.get(name)
        return self.sent

    def receive(self, message):
        self.received = message.storage_id
        return np.asarray(message), None

    def check_shared(self, name):
        if self.received != self.client.stat(name)["storage_id"]:
            raise AssertionError("the queue has copied the tensor")

    def exchanges(self):
        array, tensor = np.zeros(1024, "f4"), self.client.zeros(1024, "f4")
        return {
            "tensorcx: from_dlpack(ndarray, copy=False)": lambda: self.client.from_dlpack(
                array, copy=False
            ),
            "tensorcx: np.from_dlpack(tensor)": lambda: np.from_dlpack(tensor),
        }


class SharedMemory(Store):
    """multiprocessing.shared_memory: a block for each array."""

    def version(self):
        return sys.version.split()[0]

    def open(self, address):
        from multiprocessing.shared_memory import SharedMemory

        self.block = SharedMemory
        self.met = set()

    def put(self, name, array):
        block = self.block(create=True, size=array.nbytes)
        np.ndarray(array.shape, array.dtype, block.buf)[:] = array
        return block

    def delete(self, name, handle):
        handle.close()
        handle.unlink()

    def key(self, name, handle):
        return handle.name

    def get(self, key):
        array, block = self.receive(key)
        self.met.add(block._name)
        return array, block

    def receive(self, message):
        block = self.block(name=message)
        return np.ndarray((block.size,), "u1", block.buf), block

    def drop(self, handle):
        handle.close()

    def close(self):
        """Before Python 3.13 a process that ends unlinks what it has only opened, too."""
        from multiprocessing.resource_tracker import unregister

        for name in self.met:
            unregister(name, "shared_memory")


class SharedArray(Store):
    """A file in /dev/shm for each array."""

    def version(self):
        return version("SharedArray")

    def open(self, address):
        import SharedArray

        self.module = SharedArray
        self.prefix = f"shm://tcx-bench-{os.getpid()}-"

    def put(self, name, array):
        made = self.module.create(self.prefix + name, array.shape, array.dtype)
        made[:] = array
        return [made]

    def delete(self, name, handle):
        handle.clear()  # its mapping first: delete() itself needs one
        self.module.delete(self.prefix + name)

    def key(self, name, handle):
        return self.prefix + name

    def get(self, key):
        return self.module.attach(key), None


class Lmdb(Store):
    """One environment on tmpfs; a reader gets a view of the mapped file."""

    folder = None

    def version(self):
        return version("lmdb")

    def start(self, folder, cpu, *options):
        self.folder = tempfile.mkdtemp(prefix="tcx-bench-", dir="/dev/shm")
        self.open(self.folder)
        return self.folder

    def open(self, address):
        import lmdb

        self.env = lmdb.open(
            address, map_size=4 << 30, sync=False, metasync=False, writemap=True, map_async=True
        )

    def put(self, name, array):
        with self.env.begin(write=True) as transaction:
            transaction.put(name.encode(), array)

    def delete(self, name, handle):
        with self.env.begin(write=True) as transaction:
            transaction.delete(name.encode())

    def get(self, key):
        transaction = self.env.begin(buffers=True)
        return np.frombuffer(transaction.get(key.encode()), "u1"), transaction

    def drop(self, handle):
        handle.abort()

    def close(self):
        if self.folder:
            shutil.rmtree(self.folder)


class Vineyard(Store):
    def version(self):
        return version("vineyard")

    def start(self, folder, cpu, *options):
        import vineyard

        program = Path(vineyard.__file__).parent / "bdist" / "vineyardd"
        socket = f"{folder}/s"
        command = [program, "--meta=local", "--rpc=false", f"--socket={socket}", "--size=4G"]
        self.serve([*command, "--deployment=local"], cpu, socket, f"{folder}/log")
        self.open(socket)
        return socket

    def open(self, address):
        import vineyard

        self.module = vineyard
        self.client = vineyard.connect(address)

    def put(self, name, array):
        blob = self.client.create_blob(array.nbytes)
        np.copyto(np.frombuffer(memoryview(blob), "u1"), array)
        return blob.seal(self.client).id

    def delete(self, name, handle):
        self.client.delete([handle])

    def key(self, name, handle):
        return int(handle)

    def get(self, key):
        blob = self.client.get_blob(self.module.ObjectID(key))
        return np.frombuffer(memoryview(blob), "u1"), None

    def close(self):
        self.client.close()
        if self.server:
            self.server.kill()  # after SIGTERM it may stay
        super().close()


class Ray(Store):
    """Two drivers of one cluster; its own dozen processes may use both cores."""

    module = None

    def version(self):
        return version("ray")

    def start(self, folder, cpu, *options):
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        token = Path(folder, "token")  # else it leaves one in the home directory
        token.write_text(secrets.token_hex(32))
        self._authenticate(token)
        import ray

        ours = os.sched_getaffinity(0)
        os.sched_setaffinity(0, ours | {cpu})
        started = ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=2 << 30,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        os.sched_setaffinity(0, ours)
        self.module = ray
        return f"{started.address_info['address']} {token}"

    @staticmethod
    def _authenticate(token):
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}

    def open(self, address):
        address, token = address.split()
        self._authenticate(token)
        import ray

        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        self.module = ray

    def put(self, name, array):
        return [self.module.put(array)]

    def delete(self, name, handle):
        handle.clear()

    def key(self, name, handle):
        return self.module.cloudpickle.dumps(handle[0]).hex()

    def get(self, key):
        return self.module.get(self.module.cloudpickle.loads(bytes.fromhex(key))), None

    def close(self):
        if self.module:
            self.module.shutdown()


STORES = {
    "reference": Reference,
    "tensorcx": Tensorcx,
    "lmdb": Lmdb,
    "vineyard": Vineyard,
    "shared_memory": SharedMemory,
    "SharedArray": SharedArray,
    "Ray": Ray,
}
