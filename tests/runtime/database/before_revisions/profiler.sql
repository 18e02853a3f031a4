BEGIN TRANSACTION;
CREATE TABLE profiler_documents (
	name VARCHAR(32) NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "profiler_documents" VALUES('desk','{"runs": [{"job_id": "j000002", "state": "MEASURING", "reason": "measures at 4", "asked": true, "not_before": 0.0, "began": 1795313900.5, "top": 8, "nodes": 4, "arrived": null, "base_steps": 12, "visited": [8], "donor": "", "donor_nodes": 3, "donors": ["j000001"], "growths": 1, "shrinks": 0, "node_seconds": 81.5, "stalled_node_seconds": 16.25, "seconds": 12.0, "seen": 1795313912.5, "seen_nodes": 8, "seen_steady": false}], "ledger": {"turns": {"j000001": 1}, "counts": {"j000001": 1}}}');
INSERT INTO "profiler_documents" VALUES('kinship','{"memories": {"j000002": {"rates": {"8": 700.0}, "errors": {"8": 0.02}, "doubts": {"1": 0.3}, "times": {"8": 1795313912.0}}}, "families": {"cnn": [{"job_id": "j000000", "knots": [{"nodes": 4, "rate": 390.0, "steps": 96, "error": 0.01, "unix_seconds": 1795313800.0, "shared": false}], "rescales": [{"from_nodes": 4, "to_nodes": 8, "seconds": 2.5}]}]}, "left": ["j000003"]}');
COMMIT;
