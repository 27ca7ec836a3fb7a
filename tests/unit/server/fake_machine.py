"""A fake PATH: small scripts that replace tritonserver, mpirun, nvidia-smi and docker."""

from __future__ import annotations

import sys
from pathlib import Path

# Rank 0 answers "ready" and listens on its other ports. Each writes down its words, and leaves shared memory behind.
# {body}: what else it does before. It speaks HTTP itself: the import of http.server takes as long as all else it does.
TRITONSERVER = """
import json, os, pathlib, select, socket, subprocess, sys, time
folder = pathlib.Path({record!r})
flags = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if "=" in word)
prefix = flags["backend-config"].split("shm-region-prefix-name=")[1]
pathlib.Path("/dev/shm", prefix + "region").touch()
words = {{"argv": sys.argv, "orchestrator": {{k: v for k, v in os.environ.items() if k.startswith("TRTLLM_")}}}}
words["handover"] = os.environ.get("LOOKAHEAD_HANDOVER")
(folder / (prefix + ".part")).write_text(json.dumps(words))
os.rename(folder / (prefix + ".part"), folder / (prefix + ".json"))
{body}
if "model-control-mode" in flags:
    time.sleep(600)
ports = [int(flags[name + "-port"]) for name in ("http", "grpc", "metrics")]
listeners = [socket.create_server(("127.0.0.1", port)) for port in ports]
while True:
    listener = select.select(listeners, [], [])[0][0]
    with listener.accept()[0] as connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n")
"""

# Starts each part between colons in a session of its own, as Open MPI does, and ends when one of them ends.
MPIRUN = """
import json, pathlib, signal, subprocess, sys, time
pathlib.Path({record!r}, "mpirun.json").write_text(json.dumps(sys.argv))
words, parts = sys.argv[1:], []
assert words.pop(0) == "--allow-run-as-root", words
while words:
    end = words.index(":")
    part, words = words[:end], words[end + 1:]
    assert part[:2] == ["-n", "1"], part
    parts.append(part[2:])
running = [subprocess.Popen(part, start_new_session=True) for part in parts]
signal.signal(signal.SIGTERM, lambda number, frame: [process.terminate() for process in running])
while all(process.poll() is None for process in running):
    time.sleep(0.05)
"""

NVIDIA_SMI = """
for gpu in range({num_gpus}):
    print({gpu!r})
"""

# `docker run` runs what stands behind the image's name; the image exists once it was built.
DOCKER = """
import json, os, pathlib, subprocess, sys
folder = pathlib.Path({record!r})
words = sys.argv[1:]
with (folder / "docker.jsonl").open("a") as file:
    file.write(json.dumps(words) + "\\n")
built = folder / "image"
if words[:2] == ["image", "inspect"]:
    sys.exit(0 if built.exists() else 1)
if words[0] == "build":
    print("building")
    if {build_fails}:
        sys.exit("no such base image")
    built.touch()
if words[0] == "run":
    image = next(place for place, word in enumerate(words) if word.startswith("lookahead-serving:"))
    argv = [word.replace("/opt/tritonserver/bin/tritonserver", {server!r}) for word in words[image + 1:]]
    for place, word in enumerate(words[:image]):
        if word == "--env":
            name, _, value = words[place + 1].partition("=")
            os.environ[name] = value
    os.execvp(argv[0], argv)
"""


def write_program(path: Path, body: str) -> Path:
    """An executable Python script, of the standard library alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable} -S\n{body}")
    path.chmod(0o755)
    return path


def write_tritonserver(path: Path, record: Path, body: str = "") -> Path:
    return write_program(path, TRITONSERVER.format(record=str(record), body=body))


def fake_machine(
    folder: Path,
    *,
    tensorrt_llm: bool = True,
    mpirun: bool = True,
    num_gpus: int = 2,
    gpu: str = "NVIDIA H100 80GB HBM3, 9.0, 81559, 580.95.05",
    docker: bool = False,
    build_fails: bool = False,
) -> tuple[Path, Path]:
    """Programs below `folder`; what they were called with goes to folder/record. Returns the folder for PATH and the
    tritonserver, which has the TensorRT-LLM backend if asked for."""
    record = folder / "record"
    record.mkdir(parents=True)
    programs = folder / "bin"
    programs.mkdir()
    server = write_tritonserver(folder / "tritonserver" / "bin" / "tritonserver", record)
    if tensorrt_llm:
        (folder / "tritonserver" / "backends" / "tensorrtllm").mkdir(parents=True)
    if mpirun:
        write_program(programs / "mpirun", MPIRUN.format(record=str(record)))
    if num_gpus:
        write_program(programs / "nvidia-smi", NVIDIA_SMI.format(num_gpus=num_gpus, gpu=gpu))
    if docker:
        text = DOCKER.format(record=str(record), server=str(server), build_fails=build_fails)
        write_program(programs / "docker", text)
    return programs, server
