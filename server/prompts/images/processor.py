"""What a model is given of a picture, by transformers' own processor: the tower's inputs, and text for the prompt.

Owns the processor and a lock on it. Knows nothing of requests. Invariant: pictures of equal digests have equal inputs.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decoding.core.picture import Numbers
from decoding.errors import in_one_line
from decoding.model.vision.families import PIXTRAL, processor_name
from server.http.notices import tell
from server.prompts.model_check import is_offline
from server.prompts.model_files import ModelFiles

if TYPE_CHECKING:
    from PIL import Image

LOG = logging.getLogger("gander.prompts")
CONFIG_FILE = "config.json"
DIGEST_BYTES = 16
# Options of processors that look at a large picture's parts, too.
TILES = ("do_image_splitting", "crop_to_patches", "do_pan_and_scan")
UNREAD = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "text_replacement_offsets"})


class ProcessedImage(NamedTuple):
    """text: what takes the place of the placeholder in the prompt; num_rows: tokens in it that the tower's rows are
    for. digest, inputs: as of `Picture`."""

    text: str
    num_rows: int
    digest: bytes
    inputs: dict[str, Numbers]


@dataclass(frozen=True, slots=True)
class ImageProcessor:
    """processor: transformers'. placeholder: what a chat template writes for a picture; row_token: what stands in the
    processor's text for each of the tower's rows, and its id. identity: of all that its inputs depend on."""

    processor: Any
    placeholder: str
    row_token: str
    row_token_id: int
    identity: bytes
    _lock: Lock = field(default_factory=Lock)

    def process(self, image: Image.Image, detail: str) -> ProcessedImage:
        """image: RGB. detail: "low" has a large picture looked at as a whole alone, where the model would look at its
        parts as well."""
        options: dict[str, bool] = {}
        if detail == "low":
            options = {name: False for name in TILES if hasattr(self.processor.image_processor, name)}
            if not options:
                tell("detail changes nothing: this model looks at every picture in one way.")
        with self._lock:  # its tokenizer is not for two threads
            made = self.processor(
                images=[image],
                text=self.placeholder,
                return_text_replacement_offsets=True,
                return_tensors="np",
                **options,
            )
        text: str = made["text_replacement_offsets"][0][0]["replacement"]
        inputs = {name: _compact(np.asarray(each)) for name, each in made.items() if name not in UNREAD}
        digest = blake2b(digest_size=DIGEST_BYTES, key=self.identity)
        digest.update(f"{image.size} {sorted(options)}".encode() + image.tobytes())
        return ProcessedImage(text, text.count(self.row_token), digest.digest(), inputs)


def load_image_processor(files: ModelFiles, is_wanted: bool, trust_remote_code: bool) -> ImageProcessor | None:
    """The processor of a model that sees; None for others, and with a sentence in the log for one whose files are
    broken. is_wanted: whether pictures are served at all. Blocks: reads files, may download them."""
    path = files.find(CONFIG_FILE) if is_wanted else None
    if path is None:
        return None
    config = json.loads(path.read_text("utf-8"))
    vision = config.get("vision_config")
    vision_kind = vision.get("model_type") if isinstance(vision, dict) else None
    name = processor_name(str(config.get("model_type")), vision_kind)
    if name is None:
        return None
    try:
        return _loaded(files, name, trust_remote_code)
    except Exception as error:  # a stranger's files make the library raise anything
        LOG.warning(
            "Pictures are not taken: the processor of %s cannot be loaded: %s.", files.model, in_one_line(error)
        )
        return None


def _loaded(files: ModelFiles, name: str, trust_remote_code: bool) -> ImageProcessor:
    """name: of the processor's class."""
    import transformers  # imported late: it takes seconds
    from PIL import __version__ as pillow_version

    origin = {"revision": files.revision, "trust_remote_code": trust_remote_code, "local_files_only": is_offline()}
    kind, place = _of_pictures(_class_of(name)), files.place
    images: Any = transformers.AutoImageProcessor.from_pretrained(place, backend="pil", **origin)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(place, **origin)
    fields, _ = kind.get_processor_dict(place, **origin)
    fields.pop("video_processor", None)
    processor = kind.from_args_and_dict([images, tokenizer], fields)
    processor = processor[0] if isinstance(processor, tuple) else processor
    whole = transformers.AutoConfig.from_pretrained(place, **origin)
    row_token_id: int = whole.image_token_id
    parts = [images.to_json_string(), str(fields), transformers.__version__, pillow_version]
    identity = blake2b("\n".join(parts).encode(), digest_size=DIGEST_BYTES).digest()
    row_token: str = tokenizer.convert_ids_to_tokens(row_token_id)
    return ImageProcessor(processor, processor.image_token, row_token, row_token_id, identity)


def _class_of(name: str) -> type[Any]:
    import transformers

    if name == PIXTRAL:
        from server.prompts.images.pixtral import PixtralProcessor

        return PixtralProcessor
    found: type[Any] = getattr(transformers, name)
    return found


def _of_pictures(kind: type[Any]) -> Any:
    """The processor's class without its part for videos, which wants packages that pictures do not."""
    parts = classmethod(lambda _: ["image_processor", "tokenizer"])
    return type(kind.__name__, (kind,), {"get_attributes": parts})


def _compact(array: np.ndarray[Any, Any]) -> Numbers:
    """Of a mask, whose numbers are 0 and 1, a byte for each; of others as many as float32 and int64 have at most."""
    if array.dtype.kind in "iu" and array.ndim > 2 and array.max(initial=0) <= 1:
        array = array.astype(np.bool_)
    return Numbers.of(array.astype(np.float32) if array.dtype == np.float64 else array)
