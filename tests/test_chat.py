"""Black-box tests of `millraced chat`: with and without a terminal, with a server of its own and with another's."""
import fcntl
import os
import pty
import re
import subprocess
import termios
import threading

import pytest

from daemon import environment, program, wait_until

pytestmark = pytest.mark.serial

FAKE = ("--device", "fake", "--fake-step-us", "0", "--fake-token-us", "0")


def chat(*flags, text="", env=None):
    """Returns the exit status, stdout and stderr of a chat whose input is no terminal."""
    done = subprocess.run([program(), "chat", *flags], input=text, env=environment(env), capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


class Terminal:
    """A chat on a pseudo terminal, whose output a thread reads."""

    def __init__(self, *flags):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([program(), "chat", *flags], stdin=slave, stdout=slave, stderr=slave, env=environment(), start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.text = ""
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        try:
            while data := os.read(self.master, 4096):
                self.text += data.decode()
        except OSError:  # the other end is closed
            pass

    def type(self, text):
        os.write(self.master, text.encode())

    def expect(self, pattern, after=0):
        """Waits for the pattern in what came after a position. Returns the position behind it."""
        wait_until(lambda: re.search(pattern, self.text[after:]) or self.process.poll() is not None)
        found = re.search(pattern, self.text[after:])
        assert found, self.text
        return after + found.end()

    def end(self):
        status = self.process.wait(timeout=30)
        self.thread.join(timeout=10)
        os.close(self.master)
        return status


def test_each_line_of_an_input_is_a_message():
    code, out, err = chat(*FAKE, "--fake-answer", "Fine, and you?", text="How are you?\n\nAnd now?\n")
    assert (code, out, err) == (0, "Fine, and you?\nFine, and you?\n", "")


def test_a_question_may_stand_behind_the_model():
    code, out, _ = chat("--url", "http://127.0.0.1:1", "model", "Why?")
    assert code == 1 and out == ""
    code, out, _ = chat(*FAKE, "--fake-answer", "So.", "--prompt", "Why?")
    assert (code, out) == (0, "So.\n")


def test_another_server_gets_the_chat_the_key_and_the_sampling(start_server):
    server = start_server(*FAKE, "--fake-answer", "Yes.", "--api-key", "secret", "--log", "http=debug")
    code, out, err = chat("--url", server.http + "/v1/", text="One?\nTwo?\n", env={"MILLRACE_API_KEY": "secret"})
    assert (code, out, err) == (0, "Yes.\nYes.\n", "")
    code, out, err = chat("--url", server.http, text="One?\n")
    assert code == 1 and out == "" and "millraced chat: the server answered 401: " in err and "--api-key" in err
    code, _, err = chat("--url", server.http, "--api-key", "secret", "other", text="One?\n")
    assert code == 1 and "404" in err and "other" in err
    # The server's default has no end of its own but max_tokens.
    endless = start_server(*FAKE)
    code, out, _ = chat("--url", endless.http, "--max-tokens", "5", text="Go on\n")
    assert code == 0 and len(out) == 6


def test_a_server_that_is_not_there():
    code, out, err = chat("--url", "http://127.0.0.1:1", text="Hello\n")
    assert code == 1 and out == "" and re.match("millraced chat: http://127.0.0.1:1: .*connect", err)


def test_a_conversation_in_a_terminal():
    terminal = Terminal(*FAKE, "--fake-answer", "Fine.")
    at = terminal.expect("Talking to fake. /help lists commands")
    terminal.type("How are you?\n")
    at = terminal.expect("Fine.\r\n>>> $", at)
    terminal.type("/help\n")
    at = terminal.expect(r"(?s)/retry .*>>> $", at)
    terminal.type('"""one\ntwo"""\n')
    at = terminal.expect("Fine.\r\n>>> $", at)
    terminal.type("/nothing\n")
    at = terminal.expect("There is no /nothing", at)
    terminal.type("/exit\n")
    assert terminal.end() == 0


def test_ctrl_c_ends_an_answer_and_ctrl_d_the_chat():
    terminal = Terminal("--device", "fake", "--fake-step-us", "5000")  # an answer of seconds
    at = terminal.expect(">>> $")
    terminal.type("Talk\n")
    at = terminal.expect(r"Talk\r\n\S", at)
    terminal.type("\x03")
    at = terminal.expect(r"\(ended\)\r\n>>> $", at)
    terminal.type("half a line\x03")
    at = terminal.expect("Ctrl-D or /exit ends the chat.\r\n>>> $", at)
    terminal.type("/set max_tokens 3\n")
    at = terminal.expect(r"3\r\n>>> $", at)
    terminal.type("Again\n")
    at = terminal.expect(r"Again\r\n.{3}\r\n\(broken off", at)
    terminal.expect(">>> $", at)
    terminal.type("\x04")
    assert terminal.end() == 0


@pytest.mark.model
def test_a_first_answer_is_readable():
    code, out, err = chat(os.environ["MILLRACE_MODEL"], "--temperature", "0", "--max-tokens", "60", text="Why is the sky blue?\n")
    assert code == 0, err
    assert "scatter" in out and len(out) < 600
