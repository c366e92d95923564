"""Pictures as a video."""

from __future__ import annotations

import io
from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def mp4(pictures: Iterable[NDArray[Any]], rate: Fraction | int) -> bytes:
    """An MP4 (H.264, yuv420p).

    :param pictures: ``(height, width, 3) uint8`` each, all of one size; a last odd row or column is
        cut off.
    :param rate: pictures a second.
    """
    import av
    import numpy as np

    content = io.BytesIO()
    with av.open(content, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options={"crf": "21", "preset": "fast"})
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        for picture in pictures:
            height, width = picture.shape[:2]
            even = picture[: height // 2 * 2, : width // 2 * 2]
            if not stream.codec_context.is_open:
                stream.height, stream.width = even.shape[:2]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(even), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return content.getvalue()
