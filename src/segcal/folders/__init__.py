"""Every path, file name, schema and lock of segcal's own folders.

Here are the names that several packages use."""

from segcal.folders.cases import FORMAT, IGNORED, CaseSet, array_path, open_cases
from segcal.folders.files import (
    read_json,
    replacing,
    save_figure,
    save_weights,
    sha256,
    write_image,
    write_json,
)
from segcal.folders.runs import (
    FIRST,
    REMOVED,
    WEIGHTS,
    calibrator_path,
    candidate_path,
    checkpoint_path,
    copy_packed,
    is_empty_run,
    is_run,
    keep_candidates,
    name_candidate,
    read_bins,
    read_fits,
    read_guarantee,
    read_log,
    read_run,
    refuse_packed,
    remove_run,
    remove_scores,
    require_weights,
    restore_candidates,
    run_folders,
    sweep_run,
    weights_path,
    write_bins,
    write_guarantee,
    write_log,
    write_run,
)
from segcal.folders.scores import COLUMNS, read_scores, write_scores
from segcal.folders.studies import (
    FAILED,
    cell_folder,
    cell_log,
    failed_cells,
    foreign_in_packed,
    is_packed,
    is_study,
    read_plan_file,
    study_choice,
    study_records,
    write_cells,
    write_packed_study,
    write_plan_file,
    write_selection,
)
from segcal.folders.whole import BusyError, StoppedError, alone, whole_or_not
