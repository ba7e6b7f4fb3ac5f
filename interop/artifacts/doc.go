// Package artifacts fetches and builds what the interop tests run, and keeps
// it outside the repository: in $GANTRY_INTEROP_CACHE or, without it, in
// gantry/interop below the user's cache directory. Everything but this comment
// is behind the build tag interop.
package artifacts
