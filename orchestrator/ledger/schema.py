"""The format of run directories, and the tables of their ledgers.

Whoever changes a file of run directories, so that this program could not read what the one before
wrote, changes the number. A run directory of another format is refused.
"""

FORMAT = 1
"""0.1.0: the first release."""

SCHEMA = """
-- What a job file declares is large and does not change; what happens changes all the time. In a table of its own, a
-- page of the file has the state of some thirty jobs, and a change writes one page.
CREATE TABLE declared (
    job_id TEXT PRIMARY KEY, position INTEGER NOT NULL, where_ TEXT NOT NULL, name TEXT NOT NULL,
    spec TEXT NOT NULL, resources TEXT NOT NULL, max_retries INTEGER NOT NULL, xml_source TEXT,
    fingerprint TEXT NOT NULL, robot_hash TEXT, point TEXT NOT NULL
);
CREATE INDEX in_order ON declared (position, job_id);
CREATE TABLE jobs (
    job_id TEXT PRIMARY KEY, state TEXT NOT NULL, failures INTEGER NOT NULL DEFAULT 0, cause TEXT, message TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    env_steps INTEGER NOT NULL DEFAULT 0, ep_rew_mean REAL, ep_rew_mean_first REAL, eval_mean REAL,
    env_steps_per_s REAL, learner TEXT, learner_reason TEXT, wanted TEXT NOT NULL DEFAULT 'run',
    -- What the worker of a RUNNING job reported last, and when.
    phase TEXT, cpu_share REAL, run_delay_share REAL, parts TEXT, reported_at REAL
) WITHOUT ROWID;
CREATE TABLE attempts (
    job_id TEXT NOT NULL, number INTEGER NOT NULL, cpus TEXT NOT NULL, gpus TEXT NOT NULL,
    node TEXT, pid INTEGER, pid_start REAL, queue_s REAL NOT NULL, started_at REAL NOT NULL, ended_at REAL, wall_s REAL,
    returncode INTEGER, cause TEXT, message TEXT, max_rss_mib REAL, record TEXT,
    -- Pairs of a time and the CPUs that it left then, and who else used its CPUs.
    moves TEXT NOT NULL DEFAULT '[]', competitors TEXT NOT NULL DEFAULT '[]',
    PRIMARY KEY (job_id, number)
) WITHOUT ROWID;
-- At most one row: why PENDING jobs that ask for so much free disk space wait.
CREATE TABLE waits (text TEXT NOT NULL, least_mib INTEGER NOT NULL);
-- One row: the version of the program that made the run directory. Every format has this table.
CREATE TABLE program (version TEXT NOT NULL);
-- What has happened, in the transactions in which it did: the only stream that clients follow.
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL, job_id TEXT, message TEXT NOT NULL,
    facts TEXT NOT NULL
);
-- Requests that were applied, with their answers.
CREATE TABLE answers (id TEXT PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID;
"""
