"""Every path, file name, schema and lock of segcal's own folders.

Here are the names that several packages use."""

from segcal.folders.cases import FORMAT, IGNORED, CaseSet, array_path, open_cases
from segcal.folders.files import (
    as_cell,
    load_weights,
    read_json,
    replacing,
    save_figure,
    save_weights,
    seal,
    seal_holds,
    sha256,
    sweep,
    write_image,
    write_json,
)
from segcal.folders.names import check_name, check_text, one_name, path_of
from segcal.folders.predictions import read_summary
from segcal.folders.runs import (
    FIRST,
    NEVER_PREDICTED,
    REMOVED,
    WEIGHTS,
    calibrator_path,
    candidate_path,
    checkpoint_path,
    copy_packed,
    is_empty_run,
    is_run,
    keep_candidates,
    logits_folder,
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
