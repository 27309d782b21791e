"""Imports point one way: server to decoding, and in each of them from room to room and from file to file.

The tables below are the order. A file that they do not name fails, so that whoever adds one says where it stands.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST_FILES = 15  # of code in one folder

# From the ground up: a file imports from files before it in its room, and from rooms above its own in the table.
DECODING = {
    "process": "machine parent temporary_folder terminal",
    "kernels": """
        processor cache numba_kernel layout cpu/atomics cpu/lanes cpu/team cpu/program cpu/by_address cpu/trees
        cpu/gguf_codes cpu/halves cpu/products/tiles cpu/attention/products cpu/attention/tiled_products
        cpu/attention/step_table cpu/attention/call_table
        cpu/attention/tile_scratch cpu/attention/formats cpu/attention/tile cpu/attention/weights cpu/attention/storing
        cpu/attention/staging cpu/attention/weighing cpu/attention/exact cpu/attention/tables
        cpu/products/row_lanes cpu/products/panels cpu/products/int8 cpu/products/rounding
        cpu/products/grouped/layout cpu/products/grouped/packing cpu/products/grouped/unpacking
        cpu/products/grouped/products cpu/products/grouped/few_rows cpu/products/grouped/tiled
        cpu/products/grouped/multiplying cpu/products/grouped/records cpu/products/grouped/lookup cpu/rows cpu/experts
        cpu/states/order cpu/states/lanes cpu/states/walk cpu/states/convolution
        cpu/sampling/row cpu/sampling/edits cpu/sampling/noise
        gpu/toolchain gpu/card gpu/work_list gpu/work_items gpu/kv_rows gpu/merge gpu/attention gpu/products gpu/experts
        gpu/rows gpu/moves
        gpu/sampling/places gpu/sampling/scan gpu/sampling/draw gpu/sampling/walk gpu/sampling/edit
    """,
    "": "errors config",
    "weights": """
        kinds groups gguf_blocks row_limit row_counts device_products
        numbers/numbers numbers/floats numbers/stored_codes numbers/float_panels numbers/onednn_floats
        numbers/int8_panels numbers/grouped_codes numbers/device_codes
        matrix module_tensors linear readers rounding
    """,
    "core": """
        grammar files/output layer picture ranking sampling_params session_info speculation_params pooling request stats
        step_trace token_logprobs events top_tokens tree
    """,
    "costs": "exact_cost price calibration acceptance credit trials pricing",
    "stores": "context successor_table blend ngram suffixes evidence acceptance_model session session_store",
    "cache": """
        state_pool prefix_index block_pool kv_format mirror kv_store kv_cache stamped top_token_store feature_store
        batch step_tensors
        prefix_file prefix_folder prefix_keeper
    """,
    "attention": """
        backend exact reference sdpa padded joint
        triton/work triton/tiles triton/constants triton/triton_attention backends
    """,
    "model": """
        blueprint refusal files/gguf_file files/gguf_metadata files/gguf_hybrids files/gguf_config files/gguf_tokenizer
        files/hub_cache files/gguf_place vision/families
        vision/tower_metadata vision/projectors vision/projector_files checkpoint weights
        device/runner memory replacing/replacer replacing/row_safe
        state/sites state/rule_rows state/walk state/convolution state/state_seam
        kept/measurements seam probe self_test kept/earlier_test threads linear/exact linear/packed device/row_exact
        layers/norms layers/activations experts/gates experts/separate
        experts/reading experts/cpu_experts experts/router experts/device_experts
        files/skeleton files/gguf_layout files/gguf_model
        files/quantized_checkpoint loading
        layers/form layers/mlp layers/cpu_layer layers/cpu_parts features layers/stack
        layers/device_layer layers/device_parts
        vision/deepstack step_forward replacing/rules replacing/preparation shared_parts
        vision/projector_tensors vision/tower vision/seen
        device/capture device/exact_cost device/static_forward device/graph_runner device/exactness target_model timing
        parallel/ring parallel/collectives parallel/shards parallel/follower parallel/leader
    """,
    "sampling": """
        grammar/source grammar/trial grammar/matcher grammar/builder grammar/compiler grammar/__main__
        law token_lists logits_processors verify cpu_sampler rejection asked
        device/tree_edits device/plan device/results device/tables
        device/launch top_tokens logprobs sampler device/device_sampler step_sampler
    """,
    "drafting": """
        drafter baselines/lookup baselines/none draft_model/state draft_model/rounds draft_model/vocabulary
        draft_model/draft_model eagle/head_config eagle/network eagle/checkpoint mtp/layout mtp/network
        mtp/stored_module mtp/checkpoint
        block/block_config block/network block/checkpoint eagle/loaded_head eagle/kept_features eagle/fused_head
        eagle/head_graphs eagle/head_model eagle/head_drafting block/shortlist block/block_step
        block/fused_block block/block_model
        block/block_drafting head_loading grammar stand/static_tree
        tree/candidates tree/frontier tree/nodes tree/limits draft_model/growth one_tree/buffers
        one_tree/prediction sources baselines/isotropic baselines/recycle
        baselines/suffix draft_model/dynamic eagle/eagle_tree spine/spine stand/stand
        one_tree/opening one_tree/grower one_tree/probe one_tree/one_tree sequence_drafter registry drafting
        kept_worth
    """,
    "engine": """
        compiling/drafters compiling/groups compiling/compiler compiling/kernels compiling/__main__
        limits fault sharing/fair_queue sequence intake sequence_step sharing/step_plan scheduler
        ahead/batch ahead/roots isolation step_costs tally tracing step_result resources engine warm_up start
    """,
    "worker": """
        allocator arguments patience calls messages session_copies running_file heart inbox translation worker shard
        __main__
    """,
    "audit": "tiny_configs audit __main__",
    "training": """
        replicas schedule texts/arithmetic texts/function_forms texts/plots texts/sources
        texts/split texts/words texts/functions texts/programs texts/stories texts/chat
        texts/word_problems texts/corpus texts/prompts tokenizer export tokens evaluate train recipe
        gosling first_tree tune_tree heads/options heads/texts/prompts public_prompts tune_acceptance
        heads/texts/answers heads/texts/packs heads/roll heads/trees heads/rewards heads/target heads/texts/features
        heads/merged_attention heads/vocabulary_loss heads/ttt heads/gto heads/gto_room heads/fresh_head
        heads/block/blocks heads/block/fresh_block heads/block/block_acceptance heads/trainer heads/acceptance
        heads/curves heads/run/device_limit heads/run/parts heads/run/job heads/run/beginnings heads/run/answering
        heads/run/run heads/run/stand_in heads/run/unpack heads/run/bundle heads/train_head
    """,
    "bench": """
        options progress machine contestant workload tables/figures tables/table tables/report shapes drafting
        long_prompts architectures/sizes architectures/drafted architectures/measure architectures/__main__
        kernels/compiled kernels/compile kernels/products kernels/groups kernels/tune
        heads/contender heads/book heads/tables heads/target heads/__main__
        replay/rows replay/tables replay/__main__ samples/questions samples/tables samples/__main__
        peers/children/child peers/children/gander_peer peers/children/transformers_peer
        peers/children/llama_cpp_peer peers/children/openvino_peer peers/folders peers/gate
        peers/peer_process peers/rounds peers/options peers/asks peers/perplexity peers/tables peers/__main__
        peers/loaded neighbours prompts perplexity
        gpu/cost_model gpu/calculated gpu/contestants gpu/__main__
        sampling/cases sampling/__main__
        gpu/first_hour/record gpu/first_hour/bench gpu/first_hour/kernels gpu/first_hour/probe gpu/first_hour/model
        gpu/first_hour/tokens gpu/first_hour/tests gpu/first_hour/server gpu/first_hour/stages gpu/first_hour/stage
        gpu/first_hour/page gpu/first_hour/__main__
        host/device host/engine host/__main__
        __main__
    """,
}
SERVER = {
    "parsing": """
        string_search spaces parts tape json_text typed reply_format call_reader schema_check bare_calls reply_parser
        template_parser reply_formats
    """,
    "http": """
        errors notices keys auth heads/faults heads/hosts rate_limits work/turn middleware sender sse tracing
        holds idle_memory work/places work/work_pool body connections repeated_lines
    """,
    "settings": "memory source engine port requests access process file flags shown live manual",
    "configuration": "config",
    "library": "hub pull installed commands cli",
    "schemas": """
        base replies structured generation completions messages tools catalog chat response_replies
        response_tools responses anthropic_replies anthropic_messages anthropic
        ollama/options ollama/requests ollama/replies
    """,
    "engine_client": """
        replies open_requests worker_requests request_bytes queue_gate deadlines sessions/session_questions
        sessions/kept_sessions sessions/session_file sessions/tenant_folder sessions/session_folder
        sessions/session_keeper status summary processes/worker_process processes/restart_policy worker
        processes/standby processes/supervisor router all_sessions client
    """,
    "metrics": "totals exposition vllm_names metrics server_metrics",
    "prompts": """
        model_check model_files images/image_file images/fetching images/pixtral images/processor tokenizer_config
        special_tokens images/placing
        message_forms jinja_template template_process chat_template tokenizer served_model pooling encoding conversation
    """,
    "models": "log_names prompt_files need residency model catalogue loader making",
    "grammars": """
        keywords disjoint schema argument_schema constraint lark_rules json_regex text_grammar text_values
        schema_parts argument_values call_grammar free_text chat_constraint
    """,
    "generation": """
        detokenize choice call events logprobs options limits plan prepare report trace usage spans
        answer response_store
    """,
    "services": "service",
    "endpoints": """
        thoughts openapi once_loaded health metrics models admin admin_models page sessions rendered_prompt tokens
        chat/rendered_chat chat/options chat/serializer chat/route completions/options completions/serializer
        completions/route
        responses/input responses/input_text responses/calls responses/items responses/serializer
        responses/route responses/stored
        messages/context messages/input messages/blocks messages/serializer messages/route
        embeddings/inputs embeddings/vectors embeddings/route
        ollama/names ollama/facts ollama/input ollama/serializer ollama/route ollama/models ollama/embed
        ollama/pull
    """,
    "bench": """
        errors options connection call measured_server pictures conversations closed_loop figures late_prompt report
        started_servers bench __main__
        real/options real/figures real/goals real/rounds real/tables real/plot real/pages real/__main__
        seeing/shape seeing/__main__
    """,
    "applications": "app",
    "ray": "config_file http_call front application",
    "connect": "errors served tools connect",
    "doctor": "findings doctor",
    "process": "listening draining_server startup_report service_manager serving runner",
    "": "cli entry",
}
TOP = {"", "configuration", "services", "applications"}  # not folders: files that stand beside the rooms


def imports_of(path: Path) -> set[str]:
    """Dotted names imported at any level of the file, `from a import b` as both a and a.b."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def ranks_of(package: str, rooms: dict[str, str]) -> dict[str, int]:
    """Module names in order. A file's own rank is above that of every file it may import from."""
    names = [
        ".".join((package, *(() if room in TOP else (room,)), *file.split("/")))
        for room, files in rooms.items()
        for file in files.split()
    ]
    return {name: rank for rank, name in enumerate(names)}


@pytest.mark.parametrize(("package", "rooms"), [("decoding", DECODING), ("server", SERVER)])
def test_every_file_is_ranked_and_imports_only_from_files_before_it(package: str, rooms: dict[str, str]) -> None:
    ranks = ranks_of(package, rooms)
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert set(paths) == set(ranks), "files that have no place in the order, or places without a file"
    for name, path in paths.items():
        backwards = {other for other in imports_of(path) & set(ranks) if ranks[other] > ranks[name]}
        assert not backwards, (name, backwards)


@pytest.mark.parametrize(("package", "rooms"), [("decoding", DECODING), ("server", SERVER)])
def test_no_room_knows_one_above_it(package: str, rooms: dict[str, str]) -> None:
    order = list(rooms)
    owners = {name: room for room in rooms for name in ranks_of(package, {room: rooms[room]})}
    for name, room in owners.items():
        path = (ROOT / Path(*name.split("."))).with_suffix(".py")
        known = {owners[other] for other in imports_of(path) if other in owners}
        assert all(order.index(other) <= order.index(room) for other in known), (name, known)


def test_a_kernel_knows_numbers_alone() -> None:
    """Nothing of Gander's but other kernels and the process it is in, and nothing of modules and models."""
    for path in (ROOT / "decoding" / "kernels").rglob("*.py"):
        names = imports_of(path)
        own = {name for name in names if name.startswith("decoding")}
        assert all(name.startswith(("decoding.kernels", "decoding.process")) for name in own), (path, own)
        assert not {name for name in names if name.startswith(("torch.nn", "transformers", "safetensors"))}, path


def test_what_is_written_for_a_compiler_lies_with_the_kernels() -> None:
    """LLVM's instructions, functions for threads to run, and Triton; loops that numba compiles may lie elsewhere, but
    not with models."""
    for path in (ROOT / "decoding").rglob("*.py"):
        room = path.relative_to(ROOT / "decoding").parts[0]
        if room != "kernels":
            text, names = path.read_text(), imports_of(path)
            assert not {"llvmlite", "numba.extending.intrinsic", "triton.language"} & names, path
            assert "@nb.cfunc" not in text, path
            assert room not in {"model", "attention"} or not {"@nb.njit", "@kernel"} & set(text.split()), path


def test_one_file_asks_what_the_processor_can_do_and_one_what_the_card_can() -> None:
    asks = {
        "kernels/processor.py": ("get_host_cpu_features", "/proc/cpuinfo"),
        "kernels/gpu/card.py": ("get_device_capability", "get_device_properties"),
    }
    for path in (ROOT / "decoding").rglob("*.py"):
        name = path.relative_to(ROOT / "decoding").as_posix()
        for owner, words in asks.items():
            if not name.startswith("bench/"):
                assert (name == owner) == any(word in path.read_text() for word in words), (name, owner)


def test_decoding_knows_nothing_of_the_server() -> None:
    forbidden = {"server", "fastapi", "uvicorn", "starlette", "asyncio", "pydantic", "prometheus_client"}
    for path in (ROOT / "decoding").rglob("*.py"):
        roots = {name.split(".")[0] for name in imports_of(path)}
        assert not roots & forbidden, path


def test_a_package_file_says_what_lives_there_and_nothing_else() -> None:
    for package in ("decoding", "server"):
        for path in (ROOT / package).rglob("__init__.py"):
            body = ast.parse(path.read_text())
            assert ast.get_docstring(body), path
            assert len(body.body) == 1 or path.parent.parent == ROOT, path


def test_a_room_is_small_enough_to_be_seen_at_a_glance() -> None:
    for top, most_files, most_folders in (("decoding", 3, 17), ("server", 6, 19)):
        entries = [path for path in (ROOT / top).iterdir() if path.name != "__pycache__"]
        assert sum(path.is_file() for path in entries) <= most_files, top
        assert sum(path.is_dir() for path in entries) <= most_folders, top
        for folder in (ROOT / top).rglob("*"):
            code = [path for path in folder.iterdir() if path.suffix in {".py", ".js"}] if folder.is_dir() else []
            assert len([path for path in code if path.name != "__init__.py"]) <= MOST_FILES, folder


def test_the_engine_imports_where_the_servers_libraries_are_missing() -> None:
    blocked = "fastapi uvicorn starlette pydantic pydantic_settings prometheus_client typer httptools"
    modules = "decoding.engine.start, decoding.worker.worker, decoding.worker.shard, decoding.worker.__main__"
    program = f"import sys\nfor name in {blocked.split()!r}: sys.modules[name] = None\nimport {modules}\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)
