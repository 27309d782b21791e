"""Errors that end a benchmark. A single request that fails is not one of them: the tables count it.

BenchError
├── AddressError         a URL that is not http://host:port
├── PromptFileError      a prompt file without prompts
├── StartError           a server that did not become ready
├── ServerError          a server that does not answer what the benchmark asks before it begins
├── KeptRunError         a file of figures that were measured otherwise
└── LatePromptError      a late prompt, or a stream beside it, that failed
"""


class BenchError(Exception):
    """The base of these errors; the message is a sentence for the person who typed the command."""


class AddressError(BenchError):
    """The URL is not of the form http://host:port."""


class PromptFileError(BenchError):
    """The prompt file has no prompts, or a row without one."""


class StartError(BenchError):
    """A server exited, or was not ready in time. The message has the end of its log."""


class ServerError(BenchError):
    """A server did not answer what the benchmark asks before it begins."""


class LatePromptError(BenchError):
    """The late prompt or a stream failed, so that there is nothing to compare."""


class KeptRunError(BenchError):
    """The file keeps figures of the same model that were measured with other options."""
