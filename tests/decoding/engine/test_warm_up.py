"""No request waits for a compiler: what plain replies call is loaded before the engine is ready, and what drafting
calls before a method drafts. Until then its requests run plain, to the same tokens.
"""

import subprocess
import sys
from textwrap import dedent

PROGRAM = dedent(
    """
    import sys
    import threading
    import numpy as np
    from numba.core.registry import CPUDispatcher
    from decoding.engine.compiling.kernels import Kernels
    from decoding.config import EngineConfig
    from decoding.core.events import Finished, Tokens
    from decoding.kernels.cache import is_complete
    from decoding.engine.start import load_engine
    from decoding.core.request import Request
    from decoding.core.sampling_params import SamplingParams
    from decoding.core.speculation_params import SpeculationParams

    def compiled():
        modules = [module for name, module in sys.modules.items() if name.startswith("decoding")]
        found = [value for module in modules for value in vars(module).values() if isinstance(value, CPUDispatcher)]
        return {f"{each.__module__}.{each.__name__}": len(each.signatures) for each in found}

    class SlowCompiler:  # done with layers at once, and with drafting when it is told to be
        def __init__(self):
            self.may_end = threading.Event()

        def wait_for(self, group):
            assert group == "layers" or self.may_end.wait(120)

        def finish(self):
            pass

    def request(method, temperature, **asked):
        sampling = SamplingParams(max_tokens=24, temperature=temperature, ignore_eos=True, **asked)
        speculation = SpeculationParams(method=method)
        return Request(id="one", prompt=prompt, sampling=sampling, speculation=speculation, session_id=method)

    def reply(request, meanwhile=lambda: None):  # which is called after the third token
        tokens = []
        engine.add(request)
        while True:
            result = engine.step()
            for emitted in result.of(Tokens):
                tokens += emitted.token_ids
            if len(tokens) == 3:
                meanwhile()
            for finished in result.of(Finished):
                return tokens, finished.stats

    def end_compiling():
        compiler.may_end.set()
        for thread in threading.enumerate():
            if thread.name == "kernels":
                thread.join()

    compiler = SlowCompiler()
    config = EngineConfig(max_model_len=1200, kv_slots=4000, threads=1)
    engine = load_engine(config, kernels=Kernels(compiler))
    prompt = np.random.default_rng(0).integers(5, 1500, 700).astype(np.int32)
    prompt[350:] = prompt[:350]
    assert engine.missing_methods == [method for method in engine.methods if method != "none"]

    before = compiled()
    plain = {temperature: reply(request("none", temperature))[0] for temperature in (0.0, 0.8)}
    for temperature in plain:
        tokens, stats = reply(request("auto", temperature))
        assert tokens == plain[temperature]
        assert (stats.method, stats.choice, stats.counts.drafted) == ("none", "waiting", 0), stats
    reply(request("spine", 0.8, top_p=0.9, logprobs=2, presence_penalty=0.5, logit_bias={5: 1.0}))
    assert compiled() == before, "compiled for a plain reply"

    tokens, stats = reply(request("auto", 0.8), end_compiling)
    assert tokens == plain[0.8]
    assert (stats.method, stats.choice, list(stats.steps_by_method)) == ("auto", "requested", ["none", "auto"]), stats
    assert engine.missing_methods == []
    assert is_complete()
    assert sorted(session.session_id for session in engine.sessions.list()) == ["auto", "none", "spine"]

    before = compiled()
    for method in engine.methods:
        for temperature in (0.0, 0.8):
            assert reply(request(method, temperature))[0] == plain[temperature], method
    late = [name for name, count in compiled().items() if count > before.get(name, 0)]
    assert not late, late
    """
)


def test_nothing_is_compiled_while_requests_run_and_what_is_missing_changes_no_token() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
