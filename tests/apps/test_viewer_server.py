"""The viewer's server as browsers and scripts meet it, with a tiny model: login, tokens, live frames, endpoints."""

import ast
import asyncio
import http.client
import json
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from viewer_samples import SESSION, finish, home, make_viewer, opened

import nvs
from apps.viewer.tokens import LIFETIME, Tokens
from apps.viewer.transport import Live
from apps.viewer.workspace import Limits
from data import UserError

pytest.importorskip("gradio", reason="needs package gradio")
client = pytest.importorskip("websockets.sync.client", reason="needs package websockets")
from websockets.exceptions import ConnectionClosed  # noqa: E402

from apps import view  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


class Site:
    """A running viewer and its address."""

    def __init__(self, viewer, **options) -> None:
        view._keep_to_this_machine()
        self.viewer = viewer
        self.page, self.url, _ = view.launch(viewer, port=view._free_port("127.0.0.1", 0), **options)
        self.host = self.url.removeprefix("http://").rstrip("/")

    def connect(self, session_id: str = SESSION, token: str | None = None, origin: str | None = ""):
        token = self.viewer.token(session_id)["token"] if token is None else token
        origin = f"http://{self.host}" if origin == "" else origin
        return client.connect(f"ws://{self.host}/nvs-viewer/ws?token={token}", origin=origin)

    def fetch(self, path: str, body: bytes | None = None, **headers: str):
        request = urllib.request.Request(f"{self.url}{path}", body, headers)
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30)

    def status(self, path: str, body: bytes | None = None, **headers: str) -> int:
        try:
            return self.fetch(path, body, **headers).status
        except urllib.error.HTTPError as error:
            return error.code

    def close(self) -> None:
        self.page.close(verbose=False)
        self.viewer.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    found = Site(make_viewer([_capture(tmp_path_factory)], Limits(viewers=4)))
    yield found
    found.close()


def _capture(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("captures") / "shapes"
    (folder / "images").mkdir(parents=True)
    cameras = nvs.trajectory.orbit(None, 6, radius=2.7, elevation=20.0, image_size=(48, 64))
    frames = []
    for i, c2w in enumerate(cameras.c2w.double().numpy()):
        pixels = np.random.default_rng(i).integers(0, 255, (6, 8, 3)).astype(np.uint8)
        Image.fromarray(pixels).resize((64, 48)).save(folder / f"images/{i}.png")
        opengl = c2w * np.array([1, -1, -1, 1])
        frames.append({"file_path": f"images/{i}.png", "transform_matrix": opengl.tolist()})
    numbers = {"fl_x": 70.0, "fl_y": 70.0, "cx": 32, "cy": 24, "w": 64, "h": 48}
    (folder / "transforms.json").write_text(json.dumps({**numbers, "frames": frames}))
    return folder


def hear(socket, kind: str) -> dict:
    """The next text message of a kind."""
    while True:
        message = socket.recv(30)
        if isinstance(message, str) and json.loads(message)["t"] == kind:
            return json.loads(message)


def see(socket) -> tuple[int, bool, Image.Image]:
    """The next frame: its number, whether it is full, and its picture; it is acknowledged."""
    while True:
        message = socket.recv(30)
        if isinstance(message, bytes):
            version, flags, _, seq, w, h, milliseconds = struct.unpack("<BBHIHHf", message[:16])
            picture = Image.open(BytesIO(message[16:]))
            assert (version, picture.size) == (1, (w, h))
            assert milliseconds > 0
            socket.send(json.dumps({"t": "ack", "seq": seq}))
            return seq, bool(flags & 1), picture.convert("RGB")


def test_the_page_is_served(site):
    page = site.fetch("").read().decode()
    assert "nvs view" in page
    assert site.status("nvs-viewer/static/viewer.mjs") == 200


def test_frames_match_the_renderer(site):
    session = opened(site.viewer)
    camera = home(session)
    with site.connect() as socket:
        assert hear(socket, "hello")["scene"]["name"] == "shapes"
        socket.send(json.dumps({"t": "cam", "seq": 5, "moving": True, **camera}))
        assert see(socket)[:2] == (5, False)
        info = hear(socket, "info")
        assert info["seq"] == 5
        assert info["notes"] == []
        seq, full, picture = see(socket)
        assert (seq, full) == (5, True)
        assert picture == session.render(camera)
        socket.send(json.dumps({"t": "cam", "seq": 6, "photo": 0, "format": "png", **session.describe()["photos"][0]}))
        assert hear(socket, "info")["psnr"] > 0
        seq, _, picture = see(socket)
        assert seq == 6
        assert picture == session.render(session.describe()["photos"][0])


def test_two_tabs_see_their_own_cameras(site):
    one, two = opened(site.viewer), opened(site.viewer, "session-two")
    photos = one.describe()["photos"]
    with site.connect() as first, site.connect("session-two") as second:
        for seq in range(8):
            first.send(json.dumps({"t": "cam", "seq": seq, "moving": seq < 7, **photos[0]}))
            second.send(json.dumps({"t": "cam", "seq": 100 + seq, "moving": seq < 7, **photos[3]}))
        for socket, photo, last in ((first, photos[0], 7), (second, photos[3], 107)):
            numbers = []
            while not numbers or numbers[-1] != last:
                seq, full, picture = see(socket)
                numbers.append(seq)
                assert last - 7 <= seq <= last
            assert full
            assert numbers == sorted(numbers)
            assert picture == two.render(photo)
        finish(two.choose_inputs([0, 1]))
        assert hear(second, "scene")["why"] == "encoded"
        with pytest.raises(TimeoutError):
            while True:  # frames may still be on their way, but no news of the other scene
                message = first.recv(0.3)
                assert isinstance(message, bytes) or json.loads(message)["t"] == "info"


def test_bad_messages_are_told_and_the_socket_stays(site):
    camera = home(opened(site.viewer))
    with site.connect() as socket:
        bad = [
            "no json",
            "[]",
            "{}",
            '{"t": "cam"}',
            json.dumps({"t": "cam", "c2w": [1] * 16, "fov": 50}),
            json.dumps({"t": "cam", **camera, "seq": -1}),
            '{"t": "cam", "c2w": [NaN' + ", 0" * 15 + '], "fov": 50}',
            json.dumps({"t": "cam", "c2w": camera["c2w"], "fov": 1e9}),
            json.dumps({"t": "cam", "c2w": camera["c2w"], "lens": [0, 0, 0, 0]}),
            json.dumps({"t": "cam", **camera, "photo": "x"}),
        ]
        for text in bad:
            socket.send(text)
            assert hear(socket, "error")["message"]
        socket.send(json.dumps({"t": "cam", "seq": 1, **camera, "size": [1, 1]}))  # of an earlier scene
        assert see(socket)[0] == 1
        socket.send("x" * 5000)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(30)
        assert closed.value.rcvd.code == 1009


def test_a_failing_render_is_told_and_the_next_one_works(site, monkeypatch):
    session = opened(site.viewer)
    renderer = session.scene.renderer
    with site.connect() as socket:
        with monkeypatch.context() as patch:
            patch.setattr(type(renderer), "frames", lambda *_: 1 // 0)
            socket.send(json.dumps({"t": "cam", "seq": 3, **home(session)}))
            error = hear(socket, "error")
        assert error["seq"] == 3
        assert "ZeroDivisionError" in error["message"]
        assert "/" not in error["message"]
        socket.send(json.dumps({"t": "cam", "seq": 4, **home(session)}))
        assert see(socket)[0] == 4


@pytest.mark.parametrize(
    ("token", "origin", "code"), [("", "", 4401), ("a.b.c", "", 4401), (None, "http://evil", 4403), (None, None, 4403)]
)
def test_who_may_connect(site, token, origin, code):
    with site.connect(token=token, origin=origin) as socket, pytest.raises(ConnectionClosed) as closed:
        socket.recv(30)
    assert closed.value.rcvd.code == code


def test_too_many_viewers_are_turned_away(site):
    sockets = [site.connect(f"session-{i}") for i in range(4)]
    for connected in sockets:
        hear(connected, "hello")
    with site.connect("session-5") as late, pytest.raises(ConnectionClosed) as closed:
        late.recv(30)
    assert closed.value.rcvd.code == 4429
    for connected in sockets:
        connected.close()


def test_a_tab_that_does_not_read_is_let_go(site):
    """What it is told waits in memory, and is not to become ever more."""

    class Deaf:
        codes: list[int] = []  # noqa: RUF012

        async def receive_text(self) -> str:
            await asyncio.sleep(0)
            return "no json"

        async def send_text(self, text: str) -> None:
            await asyncio.Event().wait()

        async def close(self, code: int, reason: str) -> None:
            self.codes.append(code)

    session = opened(site.viewer)
    talk = Live(site.viewer)._talk(Deaf(), session)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool:  # the thread of the tests may have an event loop of a browser
        pool.submit(lambda: asyncio.run(asyncio.wait_for(talk, 30))).result()
    assert Deaf.codes == [4408]


def test_names_of_a_proxy_may_end_alike(site, monkeypatch):
    monkeypatch.setattr(site.viewer, "allowed_hosts", ("*.example.org",))
    with site.connect(origin="https://one.example.org") as socket:
        assert hear(socket, "hello")
    for origin in ("https://example.org.evil", "https://evilexample.org"):
        with site.connect(origin=origin) as socket, pytest.raises(ConnectionClosed):
            socket.recv(30)


def test_uploads_are_measured_before_they_are_received(site, monkeypatch):
    monkeypatch.setattr(site.viewer, "limits", replace(site.viewer.limits, upload_bytes=10))
    form = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n%b\r\n--x--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    assert site.status("gradio_api/upload", form % b"abc", **kind) == 200
    # Only the head is sent: an answer shows that no more was waited for, and no refused body breaks the connection.
    connection = http.client.HTTPConnection(site.host, timeout=30)
    connection.putrequest("POST", "/gradio_api/upload")
    for name, value in {**kind, "Content-Length": str(len(form) + 2**20)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(("length", "code"), [({"Content-Length": str(2**30)}, 413), ({}, 411)])
def test_messages_are_measured_before_they_are_received(site, length, code):
    connection = http.client.HTTPConnection(site.host, timeout=30)
    connection.putrequest("POST", "/gradio_api/component_server")
    for name, value in {"Content-Type": "application/json", **length}.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == code
    connection.close()


def test_tokens_end_and_belong_to_one_session():
    now = [1000.0]
    tokens = Tokens(lambda: now[0])
    token = tokens.token(SESSION)
    assert tokens.check_token(token) == SESSION
    assert tokens.check_token(token.replace(SESSION, "session-two")) is None
    assert tokens.check_token(token[:-1] + ("0" if token[-1] != "0" else "1")) is None
    assert Tokens(lambda: now[0]).check_token(token) is None
    assert tokens.check_key(token) is None
    assert tokens.check_token(tokens.key(SESSION)) is None
    now[0] += LIFETIME + 1
    assert tokens.check_token(token) is None
    assert tokens.check_key(tokens.key(SESSION)) == SESSION
    for junk in ("", "..", "ä.1.2", f"{SESSION}.9{'9' * 20}.x"):
        assert tokens.check_token(junk) is None


def test_closing_a_tab_frees_its_scene(site, monkeypatch):
    monkeypatch.setattr(site.viewer, "limits", replace(site.viewer.limits, grace_seconds=0.2))
    session = opened(site.viewer, "session-nine")
    socket = site.connect("session-nine")
    hear(socket, "hello")
    assert site.viewer.store.find(session.scene.key)
    key = session.scene.key
    socket.close()
    deadline = time.monotonic() + 20
    while not session.closed and time.monotonic() < deadline:
        time.sleep(0.05)
    assert session.closed
    owners = site.viewer.store._scenes.get(key, (None, set()))[1]
    assert "session-nine" not in owners


def test_plain_requests_do_the_same(site):
    session = opened(site.viewer)
    token = site.viewer.token(SESSION)["token"]
    origin = {"Origin": f"http://{site.host}"}
    greeting = json.load(site.fetch("nvs-viewer/hello", json.dumps({"token": token}).encode(), **origin))
    assert greeting["scene"]["id"] == session.scene.key
    key, camera = greeting["key"], home(session)
    answer = site.fetch(
        f"nvs-viewer/render?key={key}", json.dumps({"t": "cam", "seq": 3, "format": "png", **camera}).encode()
    )
    assert (answer.headers["X-Seq"], answer.headers["X-Full"], answer.headers["X-Size"]) == ("3", "1", "24,32")
    assert json.loads(answer.headers["X-Remarks"])["notes"] == []
    assert Image.open(BytesIO(answer.read())).convert("RGB") == session.render(camera)
    small = json.dumps({"t": "cam", "quality": "thumbnail", **camera}).encode()
    assert site.fetch(f"nvs-viewer/render?key={key}", small).headers["X-Full"] == "1"
    for place in ("photo/2", "thumb/2"):  # photos of the next scene have the same numbers
        for name, kept in ((session.scene.key, "private, max-age=600"), ("another", "no-store")):
            answer = site.fetch(f"nvs-viewer/{place}?key={key}&scene={name}")
            assert answer.headers["Cache-Control"] == kept
    photo = Image.open(BytesIO(site.fetch(f"nvs-viewer/photo/2?key={key}&h=24&w=32").read()))
    assert np.array_equal(np.asarray(photo), session.scene.photo(2, (24, 32)))
    assert Image.open(BytesIO(site.fetch(f"nvs-viewer/thumb/2?key={key}").read())).size == (96, 72)
    state = site.fetch(f"nvs-viewer/state?key={key}")
    assert "shapes.safetensors" in state.headers["Content-Disposition"]
    assert state.read() == Path(session.state_file()).read_bytes()
    for path, body, code in (
        ("nvs-viewer/photo/2", None, 403),
        ("nvs-viewer/photo/2?key=a.key.b", None, 403),
        (f"nvs-viewer/photo/99?key={key}", None, 422),
        (f"nvs-viewer/photo/1?key={key}&h=9999&w=9999", None, 422),
        (f"nvs-viewer/render?key={key}", b"{}", 422),
        (f"nvs-viewer/render?key={key}", b"x" * 5000, 422),
        ("nvs-viewer/hello", json.dumps({"token": token}).encode(), 403),  # no Origin
        ("nvs-viewer/hello", b'{"token": "x"}', 403),
    ):
        assert site.status(path, body) == code, path


def test_a_page_without_a_websocket_keeps_its_scene_and_is_told_when_it_goes(site, monkeypatch):
    monkeypatch.setattr(site.viewer, "limits", replace(site.viewer.limits, silent_seconds=1.0))
    session = opened(site.viewer, "session-poll")

    def hello() -> dict:
        token = site.viewer.token("session-poll")["token"]
        return json.load(
            site.fetch("nvs-viewer/hello", json.dumps({"token": token}).encode(), Origin=f"http://{site.host}")
        )

    assert hello()["scene"]["id"] == session.scene.key
    site.viewer.leave(SimpleNamespace(session_hash="session-poll"))  # Gradio has lost sight of the page
    assert hello()["scene"]["id"] == session.scene.key
    session.lose(session.scene)
    told = hello()
    assert told["scene"] is None and told["lost"]["source"] == "given:0" and "open it again" in told["lost"]["message"]
    finish(session.open("given:0"))
    assert hello()["lost"] is None
    deadline = time.monotonic() + 20
    while not session.closed and time.monotonic() < deadline:  # it asks no more
        time.sleep(0.05)
    assert session.closed


def test_files_of_the_machine_are_not_served(site):
    for path in (
        "gradio_api/file=/etc/passwd",
        "gradio_api/file=../../etc/passwd",
        f"gradio_api/file={ROOT}/pyproject.toml",
        "gradio_api/file=%2Fetc%2Fpasswd",
        "gradio_api/file=http://192.0.2.1/x",
        "gradio_api/file=https%3A//192.0.2.1/x",
        "nvs-viewer/static/../transport.py",
        "nvs-viewer/static/%2e%2e/transport.py",
        "nvs-viewer/static/..%2ftransport.py",
        "nvs-viewer/static//etc/passwd",
    ):
        assert site.status(path) in (403, 404), path
    assert site.status("", Host="evil.example") == 400
    body = json.dumps({"data": ["given:0", 2]}).encode()
    assert site.status("gradio_api/run/open", body, **{"Content-Type": "application/json"}) == 404


def test_nobody_outside_is_asked(site, tmp_path):
    """What the server does in a process of its own, where every connection that is begun is seen."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
asked = []
def watch(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        asked.append(arguments[1][0])
    elif event == "socket.getaddrinfo":
        asked.append(arguments[0])
sys.addaudithook(watch)
from pathlib import Path
from apps import view
view._keep_to_this_machine()
from gradio_client import Client
from viewer_samples import make_viewer
viewer = make_viewer([Path({str(site.viewer.places["given:0"])!r})])
page, url, _ = view.launch(viewer, port=view._free_port("127.0.0.1", 0))
client = Client(url, verbose=False)
assert client.predict("given:0", 2, api_name="/open")["name"] == "shapes"
address = {{"path": "https://192.0.2.1/x.zip", "meta": {{"_type": "gradio.FileData"}}}}
for files in ([address], [{{**address, "path": "http://nowhere.example/x.zip"}}]):
    try:
        client.predict(files, api_name="/open_files")
    except Exception as error:
        assert "fetches nothing from other addresses" in str(error), error
    else:
        raise AssertionError("an address was taken")
page.close(verbose=False)
viewer.close()
print(sorted({{str(host) for host in asked}} - {{"127.0.0.1", "localhost", "::1", "None", "0.0.0.0"}}))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_example_of_the_documentation_runs(site, tmp_path, monkeypatch):
    text = (ROOT / "docs/viewer.md").read_text(encoding="utf-8")
    example = next(code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "Client(" in code)
    ast.parse(example)
    monkeypatch.chdir(tmp_path)
    example = example.replace("http://127.0.0.1:7860/", site.url).replace("bundled:skull", "given:0")
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=250, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "view.png").exists()
    assert (tmp_path / "orbit.mp4").stat().st_size > 500
    assert (tmp_path / "scene.safetensors").exists()


def test_every_endpoint_is_documented(site):
    text = (ROOT / "docs/viewer.md").read_text(encoding="utf-8")
    info = json.load(site.fetch("gradio_api/info"))
    assert {name for name in info["named_endpoints"]} == set(re.findall(r"^\| `(/\w+)", text, re.MULTILINE))


@pytest.mark.slow
def test_a_login_guards_page_and_endpoints(tmp_path_factory):
    site = Site(make_viewer([_capture(tmp_path_factory)]), login=("me", "secret"))
    try:
        for path in ("config", "gradio_api/info", "gradio_api/queue/data?session_hash=x"):
            assert site.status(path) == 401, path
        body = json.dumps({"data": [SESSION], "component_id": 1, "fn_name": "token", "session_hash": "x"}).encode()
        assert site.status("gradio_api/component_server", body, **{"Content-Type": "application/json"}) == 401
        from gradio_client import Client

        session = Client(site.url, auth=("me", "secret"), verbose=False)
        assert session.predict("given:0", 2, api_name="/open")["name"] == "shapes"
    finally:
        site.close()


@pytest.mark.slow
def test_addresses_of_ipv6_are_listened_at(tmp_path_factory):
    try:
        port = view._free_port("::1", 0)
    except UserError:
        pytest.skip("this machine has no IPv6")
    viewer = make_viewer([_capture(tmp_path_factory)])
    page, url, _ = view.launch(viewer, "::1", port)
    try:
        assert url == f"http://[::1]:{port}/"
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as answer:
            assert answer.status == 200
    finally:
        page.close(verbose=False)
        viewer.close()


class TestCommand:
    def test_failures_are_told(self, tmp_path):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(UserError, match=f"port {port}.*choose another"):
                view.view([], port=port)
        with pytest.raises(UserError, match="--auth NAME:PASSWORD"):
            view.view([], auth="nobody")
        with pytest.raises(UserError, match="There is no port"):
            view.view([], port=70000)
        with pytest.raises(UserError, match=r"cannot listen at 203\.0\.113\.1"):
            view.view([], host="203.0.113.1")
        with pytest.raises(UserError, match="nowhere"):
            view.view(["nowhere.safetensors"])
        with pytest.raises(UserError, match="No capture matches"):
            view.view(["demo", str(tmp_path / "nothing*")])
        with pytest.raises(UserError, match="no scene state"):
            view.view(["demo", str(tmp_path / "nothing.safetensors")])

    @pytest.mark.parametrize("option", ["max_upload", "scene_memory", "max_viewers"])
    def test_impossible_limits_are_told(self, option):
        with pytest.raises(UserError, match=f"--{option.replace('_', '-')} 0 is not possible"):
            view.view([], **{option: 0})

    @pytest.mark.slow
    def test_it_says_when_it_is_ready_and_ends_when_asked(self, site):
        port = view._free_port("127.0.0.1", 0)
        words = ["demo", str(site.viewer.places["given:0"]), "--port", str(port)]
        command = [sys.executable, "-m", "apps", "view", *words]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout
            assert process.stdout.readline() == f"The viewer is ready: http://127.0.0.1:{port}/\n"
            assert "ssh -N -L" in process.stdout.readline()
            url = f"http://127.0.0.1:{port}/"
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url) as page:
                assert page.status == 200
            process.terminate()
            _, errors = process.communicate(timeout=100)
            assert (process.returncode, errors) == (0, "")
        finally:
            process.kill()
