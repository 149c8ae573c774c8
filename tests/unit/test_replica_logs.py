"""Importing vLLM must not take away a replica's log file."""

import logging
import logging.config
import logging.handlers
from pathlib import Path

from deployments.engine_slot import log_file_kept, logger


def test_the_log_file_survives_a_library_that_configures_logging(tmp_path: Path) -> None:
    file = tmp_path / "replica.log"
    handler = logging.handlers.MemoryHandler(capacity=1, target=logging.FileHandler(file))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with log_file_kept():
            logger.info("before")
            logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
        logger.info("after")
        assert file.read_text() == "before\nafter\n"
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
