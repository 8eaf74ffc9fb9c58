"""A client of HTTP/2 that sends exactly the frames that a test wants, well-formed or not."""
import socket
import struct
import time

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = END_STREAM = 1
END_HEADERS = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_ERROR, PROTOCOL_ERROR, ENHANCE_YOUR_CALM = 0, 1, 11


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def field(name, value):
    """Returns a header field as a literal that is not put into the table."""
    return b"\0" + integer(len(name)) + name + integer(len(value)) + value


def integer(value, prefix=7):
    most = (1 << prefix) - 1
    if value < most:
        return bytes([value])
    out = bytes([most])
    value -= most
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def call(path, *more):
    """Returns the header block of a call."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"localhost"),
              (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more]
    return b"".join(field(*one) for one in fields)


def message(payload):
    """Returns a message as gRPC puts it into DATA."""
    return struct.pack(">BI", 0, len(payload)) + payload


def frames(data):
    """Yields (kind, flags, stream, payload) of each whole frame."""
    while len(data) >= 9 and len(data) >= 9 + (length := int.from_bytes(data[:3], "big")):
        yield (*struct.unpack(">BBI", data[3:9]), data[9:9 + length])
        data = data[9 + length:]


class Client:
    """A connection. What it sends is taken as long as the server reads it."""

    def __init__(self, address, greet=True, timeout=10):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.windows = 0
        if greet:
            self.send(PREFACE + frame(SETTINGS))

    def send(self, data):
        self.socket.sendall(data)

    def open(self, stream, path=b"/grpc.health.v1.Health/Check", flags=END_HEADERS, *more):
        self.send(frame(HEADERS, flags, stream, call(path, *more)))

    def read_frame(self):
        """Returns (kind, flags, stream, payload), or None at the end of the connection."""
        try:
            while len(self.buffer) < 9 or len(self.buffer) < 9 + int.from_bytes(self.buffer[:3], "big"):
                data = self.socket.recv(65536)
                if not data:
                    return None
                self.buffer += data
        except ConnectionError:
            return None
        length, (kind, flags, stream) = int.from_bytes(self.buffer[:3], "big"), struct.unpack(">BBI", self.buffer[3:9])
        payload, self.buffer = self.buffer[9:9 + length], self.buffer[9 + length:]
        return kind, flags, stream, payload

    def wait_for(self, kind, stream=None):
        """Returns the next frame of that kind, or None at the end."""
        while (one := self.read_frame()) is not None:
            if one[0] == kind and stream in (None, one[2]):
                return one

    def goaway(self):
        """Returns (last stream, error code, debug data) of the GOAWAY with which the server closes, or None."""
        last = None
        while (one := self.read_frame()) is not None:
            if one[0] == GOAWAY:
                last = (*struct.unpack(">II", one[3][:8]), one[3][8:].decode())
        return last

    def flood(self, data, seconds=2):
        """Sends `data` (or what the function returns) again and again for that long, or until the server closes."""
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                self.send(data() if callable(data) else data)
        except (ConnectionError, TimeoutError):
            return False
        return True

    def close(self):
        self.socket.close()
