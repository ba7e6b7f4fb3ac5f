//go:build !invariants

package base

const invariantsTag = false
