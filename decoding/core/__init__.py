"""Records that every room may import: requests and their parameters, draft trees, results of a step, counts.

Pure data, besides files that outlive a process and the tie to the parent process. Imports only `errors` of this
package.
"""
