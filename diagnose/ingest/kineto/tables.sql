-- From the events of a Kineto trace (view `event`) to the raw tables. Variables: source, origin (ns), base.
-- Only sane events are taken: view `sane`, made beforehand, has lost what has no possible time.

CREATE OR REPLACE TABLE name AS
SELECT CAST(row_number() OVER (ORDER BY text) AS INTEGER) AS name_id, text
FROM (
    SELECT DISTINCT coalesce(name, '') AS text FROM sane
    WHERE kind IN ('op', 'call', 'kernel', 'copy', 'memset', 'python')
);

CREATE OR REPLACE TABLE signature AS
SELECT
    CAST(row_number() OVER (ORDER BY input_dims, input_dtypes, input_strides, scalar_args, extra) AS INTEGER)
        AS signature_id,
    input_dims, input_dtypes, input_strides, scalar_args, extra, signature AS hash
FROM (
    SELECT
        signature, any_value(input_dims) AS input_dims, any_value(input_dtypes) AS input_dtypes,
        any_value(input_strides) AS input_strides, any_value(scalar_args) AS scalar_args, any_value(extra) AS extra
    FROM sane WHERE kind IN ('op', 'kernel') AND signature IS NOT NULL
    GROUP BY signature
);
