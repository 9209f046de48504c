"""Runs inside ComfyUI's interpreter: saves a run file as the node does it, with the cache copied.

Arguments: RUN_FILE. Prints the saved file, or the error.
"""

import sys

from loaded_pack import part


def main():
    (run_file,) = sys.argv[1:]
    try:
        config = part("trainer_core.families.run_files").load_config(run_file)
        saved = part("nodes.services.write_run_file").save_run_file(config, copy_cache=True)
        sys.stdout.write(f"SAVED {saved}\n")
    except part("trainer_core.errors").TrainerError as error:
        sys.stdout.write(f"REFUSED {error.found}\n")


main()
