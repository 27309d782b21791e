"""No request waits for a compiler: what the serving path calls is compiled before the engine is ready."""

import subprocess
import sys
from textwrap import dedent

PROGRAM = dedent(
    """
    import sys
    import numpy as np
    from numba.core.registry import CPUDispatcher
    from decoding.config import EngineConfig
    from decoding.engine.engine import Engine
    from decoding.core.request import Request
    from decoding.core.sampling_params import SamplingParams
    from decoding.core.speculation_params import SpeculationParams

    def compiled():
        modules = [module for name, module in sys.modules.items() if name.startswith("decoding")]
        found = [value for module in modules for value in vars(module).values() if isinstance(value, CPUDispatcher)]
        return {f"{each.__module__}.{each.__name__}": len(each.signatures) for each in found}

    engine = Engine.load(EngineConfig(max_model_len=1200, kv_slots=4000, threads=1))
    before = compiled()
    prompt = np.random.default_rng(0).integers(5, 1500, 700).astype(np.int32)
    for method in ("auto", *engine.methods):
        for temperature in (0.0, 0.8):
            sampling = SamplingParams(max_tokens=24, temperature=temperature, ignore_eos=True)
            speculation = SpeculationParams(method=method)
            engine.add(Request(id="one", prompt=prompt, sampling=sampling, speculation=speculation, session_id=method))
            while engine.has_work:
                engine.step()
    late = [name for name, count in compiled().items() if count > before.get(name, 0)]
    assert not late, late
    """
)


def test_nothing_is_compiled_while_requests_run() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
