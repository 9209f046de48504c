"""What ComfyUI writes into its log, where alone it tells what of a file it does not load."""

import logging


class Said(logging.Handler):
    """All that is louder than for information, from when this is made on.

    Args:
        word: What a message has to have in it, in lower case.
    """

    def __init__(self, word=""):
        super().__init__(logging.WARNING)
        self.messages, self.word = [], word
        logging.getLogger().addHandler(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        logging.getLogger().removeHandler(self)

    def emit(self, record):
        if self.word in record.getMessage().lower():
            self.messages.append(record.getMessage())

    def unread(self):
        """What tells of a tensor that is not loaded."""
        return [text for text in self.messages if "not loaded" in text or "ERROR" in text]
