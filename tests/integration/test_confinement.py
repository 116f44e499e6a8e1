"""Tests what code can do from inside each process that handles untrusted bytes: each attempt must fail.

The code under attack is the product's own start of each process; only its work is replaced by the attempts. All are tried
as root, where the tests run as root, and as a user without privileges.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from guanaco_server.confinement import layers
from guanaco_server.confinement.profiles import OWN_FOLDERS_VARIABLE
from guanaco_server.engine.memory_limit import MEMORY_VARIABLE
from guanaco_server.serializer.task import TICKET_VARIABLE, SerializerTask, Source, Upload
from tests.fixtures.artifacts import KEY, random_tensors, write_artifact

pytestmark = pytest.mark.slow

IMPORTS = ":".join([str(Path("server").absolute()), str(Path().absolute())])
UNPRIVILEGED = 65534

ATTEMPTS = """
import ctypes, errno, json, os, socket, struct, sys
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
places = json.loads(os.environ.pop("PLACES", "null") or Path(sys.argv[1]).read_text())

def become() -> None:
    if places["user"] and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(*[places["user"]] * 3)
        os.setresuid(*[places["user"]] * 3)

def listens(port):
    with socket.socket() as tried:
        tried.connect(("127.0.0.1", port))
        return True

def connects(kind, protocol):
    with socket.socket(socket.AF_INET, kind, protocol) as tried:
        tried.connect(("127.0.0.1", places["port"]))
        return True

def sends(flags, call):
    with socket.socket() as tried:
        address = ("127.0.0.1", places["port"])
        return call(tried, b"x", flags, address) == 1

def many_messages(tried, data, flags, address):
    name = (ctypes.c_char * 16).from_buffer_copy(struct.pack("=HH4s8x", 2, socket.htons(address[1]), socket.inet_aton(address[0])))
    kept = ctypes.create_string_buffer(data)
    part = (ctypes.c_size_t * 2)(ctypes.addressof(kept), 1)
    header = ctypes.create_string_buffer(struct.pack("PIxxxxPNPNixxxxIxxxx", ctypes.addressof(name), 16, ctypes.addressof(part), 1, 0, 0, 0, 0))
    return LIBC.sendmmsg(tried.fileno(), header, 1, flags)

def datagram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
        return tried.sendto(b"x", ("127.0.0.1", places["port"])) == 1

def is_made(*kind):
    with socket.socket(*kind):
        return True

def unix(name):
    with socket.socket(socket.AF_UNIX) as tried:
        tried.connect(places[name])
        return True

def other_protocol():
    with socket.socket() as tried:
        try:
            tried.setsockopt(socket.IPPROTO_TCP, 31, b"none")  # TCP_ULP
        except OSError as error:
            return error.errno != errno.EPERM

def ring():
    made = LIBC.syscall(425, 1, ctypes.create_string_buffer(120))
    return made >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)

def accepts():
    with socket.socket() as tried:
        tried.listen()  # at a port that the kernel chooses
        return True

def forks():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True

def spawns():
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    return True

ATTEMPTS = {
    "database": lambda: Path(places["database"]).read_bytes(),
    "environment": lambda: Path(f"/proc/{places['platform']}/environ").read_bytes(),
    "memory": lambda: open(f"/proc/{places['platform']}/mem", "rb").close() or True,
    "connect": lambda: listens(places["port"]),
    "mptcp": lambda: connects(socket.SOCK_STREAM, 262),
    "fast open": lambda: sends(0x20000000, lambda tried, data, flags, address: tried.sendto(data, flags, address)),
    "fast open in a message": lambda: sends(0x20000000, lambda tried, data, flags, address: tried.sendmsg([data], [], flags, address)),
    "fast open in messages": lambda: sends(0x20000000, many_messages),
    "udp": datagram,
    "udp lite": lambda: is_made(socket.AF_INET, socket.SOCK_DGRAM, 136),
    "vsock": lambda: is_made(socket.AF_VSOCK, socket.SOCK_STREAM),
    "netlink": lambda: is_made(socket.AF_NETLINK, socket.SOCK_RAW, 4),
    "raw": lambda: is_made(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP),
    "packet": lambda: is_made(socket.AF_PACKET, socket.SOCK_RAW, 0),
    "xdp": lambda: is_made(44, socket.SOCK_RAW, 0),
    "other protocol": other_protocol,
    "ring": ring,
    "unix": lambda: unix("unix"),
    "unix of its owner": lambda: unix("owners"),
    "listen": accepts,
    "fork": forks,
    "program": spawns,
    "signal": lambda: os.kill(places["platform"], 0) or True,
    "write": lambda: Path(places["outside"]).write_text("x"),
    "mode": lambda: os.chmod(places["database"], 0o777) or True,
    "owner": lambda: os.chown(places["database"], os.getuid(), -1) or True,
    "time": lambda: os.utime(places["database"], (1, 1)) or True,
    "hoard": lambda: len(bytearray(4 * 2**30)),
}

def attempt():
    done = []
    for name, act in ATTEMPTS.items():
        try:
            if act():
                done.append(name)
        except (OSError, MemoryError):
            pass
    return done
"""

PIPED = (
    ATTEMPTS
    + """
from {module} import {name} as child

def receive(pipe):
    print(json.dumps(attempt()), flush=True)
    raise ValueError("the parent has gone")

become()
child.receive = receive  # the first that it does once it is confined
child.main()
"""
)
TEMPLATE = PIPED.replace("{module}", "guanaco_server.prompts.templates").replace(
    "{name}", "sandbox"
)
TOKENIZER = PIPED.replace("{module}", "guanaco_server.tokenization").replace("{name}", "child")

CHECKER = (
    ATTEMPTS
    + """
from guanaco_server.confinement import confined
become()
confined.confine(confined.ProcessLimits(60, 2 * 10**9, 60, 10**6), Path(places["folder"]))
assert Path(places["folder"], "own").write_text("x")
print(json.dumps(attempt()), flush=True)
"""
)

JOB = (
    ATTEMPTS
    + """
from guanaco_server.serializer import job
import huggingface_hub.file_download  # another user cannot read every Python environment

class Manifest:
    tensor_count = size_bytes = 0

def make_artifact(task, target, workers, scratch, before_weights):
    assert (scratch / "own").write_text("x") and Path(task.upload.folder, "own").write_text("x")
    before_weights()
    print("uid", os.geteuid(), flush=True)
    print(json.dumps(attempt()), flush=True)
    return Manifest()

become()
job.make_artifact = make_artifact
assert job.main() == 0
"""
)

SERVER = (
    ATTEMPTS
    + """
from guanaco_server.confinement.profiles import forbid_processes
from guanaco_server.engine import serve

def work(options, source, cache, found, held, further):
    assert (found.path / "config.json").read_bytes()
    with socket.create_server(("127.0.0.1", options.port)):
        pass
    assert (Path(os.environ["HOME"]) / "own").write_text("x")
    print("uid", os.geteuid(), flush=True)
    forbid_processes()  # as vllm_internals does once the engine has started
    print(json.dumps(attempt()), flush=True)

become()
serve._serve = work
serve.is_cpu_build = lambda: True
serve.main(["--artifact", Path(places["artifact"]).as_uri(), "--name", "x", "--port", "21099", "--max-model-len", "8"])
"""
)
PROCESSES = {
    "template": TEMPLATE,
    "tokenizer": TOKENIZER,
    "checker": CHECKER,
    "serializer": JOB,
    "model server": SERVER,
}


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.fixture(scope="module")
def in_force() -> set[str]:
    return {layer.name for layer in layers.examine() if layer.is_in_force}


def expected(name: str, in_force: set[str]) -> set[str]:
    """The attempts that must fail with the layers of this machine; those of a template fail everywhere."""
    if name in ("template", "tokenizer"):
        needs = dict.fromkeys(ALL, layers.CALLS)
    elif name == "checker":
        others = ("connect", "fork", "program", "signal", *WAYS_AROUND_PORTS)
        needs = NEEDS | dict.fromkeys(others, layers.CALLS)
    elif name == "model server":  # vLLM's processes talk through Unix sockets, and it listens
        needs = {attempt: needed for attempt, needed in NEEDS.items() if attempt not in SERVES_BY}
        needs["unix of its owner"] = layers.USER
    else:
        needs = NEEDS
    return {attempt for attempt, layer in needs.items() if layer in in_force}


WAYS_AROUND_PORTS = (
    *("mptcp", "fast open", "fast open in a message", "fast open in messages", "udp", "udp lite", "vsock"),
    *("netlink", "raw", "packet", "xdp", "other protocol", "ring", "unix", "unix of its owner", "listen"),
)  # fmt: skip
SERVES_BY = ("unix", "listen")
NEEDS = {
    "database": layers.FILES,
    "environment": layers.FILES,
    "memory": layers.FILES,
    "connect": layers.PORTS,
    **dict.fromkeys(WAYS_AROUND_PORTS, layers.SOCKETS),
    "fork": layers.PROCESSES,
    "program": layers.PROCESSES,
    "signal": layers.SIGNALS,
    "write": layers.FILES,
    **dict.fromkeys(("mode", "owner", "time"), layers.CALLS),
    "hoard": layers.MEMORY,
}
ALL = tuple(NEEDS)  # in the order in which they are tried


@pytest.mark.parametrize("user", [0, UNPRIVILEGED], ids=["as root", "as nobody"])
@pytest.mark.parametrize("name", PROCESSES)
def test_nothing_is_to_be_had_from_inside(
    name: str, user: int, folder: Path, listener: int, in_force: set[str]
) -> None:
    if user and os.geteuid() != 0:
        pytest.skip("The tests already run without privileges.")
    done = attempts_from_inside(name, user, folder, listener)
    assert not expected(name, in_force) & set(done)


def test_without_confinement_every_attempt_succeeds(folder: Path, listener: int) -> None:
    """Else the attempts would prove nothing."""
    assert attempts_from_inside("", 0, folder, listener) == list(ALL)


def test_names_are_resolved_where_no_udp_may_be_sent() -> None:
    code = """
import json, os, socket, threading
from guanaco_server.confinement.landlock import Access
from guanaco_server.confinement.profiles import confine_program
from guanaco_server.confinement.sockets import Sockets
confine_program(Access(connects=(443,)), Sockets())
def look_up(name):
    try:
        return socket.getaddrinfo(name, 443, type=socket.SOCK_STREAM)[0][4][0]
    except socket.gaierror as error:
        return error.args[0] == socket.EAI_NONAME
found = [look_up("localhost"), look_up("127.0.0.1"), look_up("no such name")]
if (child := os.fork()) == 0:
    found.append(look_up(b"localhost"))
    print(json.dumps(found), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": IMPORTS},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,  # the resolver ends with those who ask it, and its output with it
    )
    assert ran.returncode == 0, ran.stderr
    local, number, unknown, in_child = json.loads(ran.stdout)
    assert local in ("127.0.0.1", "::1")
    assert (number, unknown, in_child) == ("127.0.0.1", True, local)


def test_the_environment_that_others_see_has_no_secret() -> None:
    code = "from guanaco_server.confinement import environment as e; import os; e.hide_secrets(); "
    code += "print(os.environ['HF_TOKEN'], os.popen('echo $GUANACO_DATABASE_URL').read(), flush=True); input()"
    secrets = {"HF_TOKEN": "hf_secret", "GUANACO_DATABASE_URL": "postgresql://u:pw@db/x"}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": IMPORTS, **secrets},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == list(secrets.values())  # itself it has them
        seen = Path(f"/proc/{process.pid}/environ").read_text()
        process.communicate("\n")
    assert "HF_TOKEN=***" in seen
    assert IMPORTS in seen
    assert not any(secret in seen for secret in secrets.values())


def test_server_that_only_a_watch_can_limit_is_ended() -> None:
    """On a GPU the kernel's limit does not fit."""
    code = "from guanaco_server.engine.memory_limit import limit_memory; limit_memory(is_kernels=False); "
    code += "import os, time; os.fork(); kept = b'x' * 200_000_000; time.sleep(600)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": IMPORTS, MEMORY_VARIABLE: "300000000"},
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert ran.returncode == -signal.SIGKILL
    assert "more than 300,000,000 bytes of memory" in ran.stdout


def attempts_from_inside(name: str, user: int, folder: Path, listener: int) -> list[str]:
    code = PROCESSES.get(name, ATTEMPTS + "print(json.dumps(attempt()))")
    data, own, artifact = folder / "data", folder / "own", folder / "artifact"
    for made in (data, own):
        made.mkdir()
    (data / "guanaco.db").write_text("users")
    write_artifact(artifact, random_tensors(10))
    sockets = ("unix", "owners")
    unix = [socket.socket(socket.AF_UNIX) for _ in sockets]
    for place, bound in zip(sockets, unix, strict=True):
        bound.bind(str(data / place))
        bound.listen()
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777)  # only the confinement is in the way
    (data / "owners").chmod(0o600)  # as one that starts containers for whoever may write to it
    places = {
        "user": user,
        "database": str(data / "guanaco.db"),
        "outside": str(data / "written"),
        "folder": str(own),
        "artifact": str(artifact),
        "platform": os.getpid(),
        "port": listener,
        **{place: str(data / place) for place in sockets},
    }
    (folder / "tried.py").write_text(code)
    task = SerializerTask(
        key=KEY,
        hub_endpoint="https://hub.invalid",
        memory_bytes=2**30,
        model=Source(repo="acme/tiny", commit="c" * 40, weight_files=(), small_files=()),
        upload=Upload(folder=str(own)),
    )
    (own / "ticket.json").write_text(task.model_dump_json())
    ran = subprocess.run(
        [sys.executable, "-c", f"exec(open({str(folder / 'tried.py')!r}).read())"],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": IMPORTS,
            "TMPDIR": str(own),
            "HOME": str(own),
            OWN_FOLDERS_VARIABLE: str(own),
            "PLACES": json.dumps(places),
            MEMORY_VARIABLE: str(2**30),
            TICKET_VARIABLE: (own / "ticket.json").as_uri(),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    for bound in unix:
        bound.close()
    if (
        name in ("serializer", "model server")
        and os.geteuid() == user == 0
        and layers.landlock.version()
    ):
        shown = next(line for line in ran.stdout.splitlines() if line.startswith("uid "))
        assert int(shown.split()[1]) > 60_000, "root gives it a user of its own"
        assert (own / "own").stat().st_uid == int(shown.split()[1])
    lines = [line for line in ran.stdout.splitlines() if line.startswith("[")]
    assert lines, ran.stdout + ran.stderr
    return list(json.loads(lines[-1]))
