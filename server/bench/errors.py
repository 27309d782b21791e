"""Why a benchmark cannot go on. A single request that fails is no error but a figure.

BenchError
├── AddressError         a URL that is none
├── PromptFileError      a prompt file without prompts
├── StartError           a server that did not become ready
├── ServerError          a server that does not say what must be known to begin
└── LatePromptError      a late prompt, or a stream beside it, that was not answered
"""


class BenchError(Exception):
    """Root of the tree; the message is a sentence for whoever typed the command."""


class AddressError(BenchError):
    """The URL is not of the form http://host:port."""


class PromptFileError(BenchError):
    """The prompt file has no prompts, or a row without one."""


class StartError(BenchError):
    """A server ended, or was not ready in time; with the end of what it said."""


class ServerError(BenchError):
    """A server did not answer what the benchmark needs to know before it can begin."""


class LatePromptError(BenchError):
    """The late prompt or a stream was not answered, so there is nothing to compare."""
