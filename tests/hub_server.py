"""A Hugging Face hub on 127.0.0.1, with its storage on another host, which can be told to misbehave."""
import hashlib
import http.server
import json
import threading
import urllib.parse


def git_blob(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Fault:
    """A fault that affects the next `times` requests whose method and path contain `match`: one of
    status (with headers), cut (so many bytes of the body, then the end), wrong (bytes that are others), ranges=False,
    slow (bytes a second), together (a barrier at which these requests wait for each other), or other headers."""

    def __init__(self, match, times=1, status=None, headers=None, cut=None, wrong=False, ranges=True, body=None, slow=None,
                 together=None):
        self.__dict__.update(locals())


class Hub:
    def __init__(self):
        self.models = {}  # "org/name": {"commit", "files": {name: bytes}, "refs": {name: commit}}
        self.private = set()
        self.token = "hf_good"
        self.faults = []
        self.seen = []  # (server, method, path, headers)
        self.proxied = set()  # hosts requested from the hub as a proxy
        self.lock = threading.Lock()
        self.servers = {name: self.serve(name) for name in ("hub", "storage")}
        self.url, self.storage = (f"http://127.0.0.1:{self.servers[name].server_port}" for name in ("hub", "storage"))

    def add(self, name, files, commit="1" * 40):
        """Returns whether a file is in the storage, like large files: those of over 100,000 bytes are."""
        self.models[name] = {"commit": commit, "files": dict(files)}

    def requests(self, method, part, server=None):
        with self.lock:
            return [entry for entry in self.seen
                    if entry[1] == method and part in entry[2] and server in (None, entry[0])]

    def env(self, home, **more):
        """Returns the environment of a client."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_CACHE": "", "HF_TOKEN": "", "HF_HUB_OFFLINE": "",
                "XDG_CACHE_HOME": str(home),
                "no_proxy": "*", **more}

    def stop(self):
        for server in self.servers.values():
            server.shutdown()
            server.server_close()

    def serve(self, name):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                hub.answer(self, name)

            do_GET = do_HEAD

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # clients may disconnect

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server

    def answer(self, request, server):
        path = urllib.parse.unquote(request.path)
        with self.lock:
            if path.startswith("http://"):
                host, _, path = path.removeprefix("http://").partition("/")
                path, server = f"/{path}", "storage" if self.storage.endswith(host) else "hub"
                self.proxied.add(host)
            self.seen.append((server, request.command, path, dict(request.headers)))
            fault = next((f for f in self.faults if f.times > 0 and f.match in f"{request.command} {server}{path}"), None)
            if fault is not None:
                fault.times -= 1
        fault = fault or Fault("")
        if fault.together is not None:
            fault.together.wait()
        if fault.status is not None:
            return self.send(request, fault.status, {**(fault.headers or {})}, fault.body or b"", fault)
        status, headers, data = self.find(request, server, path)
        self.send(request, status, {**headers, **(fault.headers or {})}, data if fault.body is None else fault.body, fault)

    def find(self, request, server, path):
        parts = path.strip("/").split("/")
        if server == "storage":
            name, digest = "/".join(parts[:2]), parts[2]
            return 200, {}, next(data for data in self.models[name]["files"].values()
                                 if hashlib.sha256(data).hexdigest() == digest)
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        model = self.models.get(name)
        allowed = name not in self.private or request.headers.get("Authorization") == f"Bearer {self.token}"
        if model is None or not allowed:
            return 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b""
        revision = "/".join(parts[5:]) if parts[0] == "api" else parts[3]
        if revision not in ("main", model["commit"], *model.get("refs", ())):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if parts[0] == "api":
            listing = {"id": name, "sha": model["commit"], "siblings": [{"rfilename": file} for file in model["files"]]}
            return 200, {"Content-Type": "application/json"}, json.dumps(listing).encode()
        data = model["files"].get("/".join(parts[4:]))
        if data is None:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        headers = {"X-Repo-Commit": model["commit"]}
        if len(data) <= 100_000:
            return 200, {**headers, "ETag": f'"{git_blob(data)}"'}, data
        digest = hashlib.sha256(data).hexdigest()
        return 302, {**headers, "Location": f"{self.storage}/{name}/{digest}", "ETag": '"of the redirect"',
                     "X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}, b""

    def send(self, request, status, headers, data, fault):
        asked = request.headers.get("Range", "")
        if status == 200 and asked.startswith("bytes=") and fault.ranges:
            begin, end = (int(number) for number in asked[6:].split("-"))
            status, headers = 206, {"Content-Range": f"bytes {begin}-{end}/{len(data)}", **headers}
            data = data[begin:end + 1]
        if fault.wrong:
            data = bytes(len(data))
        request.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "HEAD":
            return
        if fault.cut is not None:
            data = data[:fault.cut]
            request.close_connection = True
        step = fault.slow // 20 if fault.slow else len(data) or 1
        for at in range(0, len(data), step):
            request.wfile.write(data[at:at + step])
            if fault.slow:
                threading.Event().wait(0.05)
