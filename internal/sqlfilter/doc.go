// Package sqlfilter compiles and evaluates the SQL92 expressions by which
// consumers choose messages (RocketMQ: module filter, SqlFilter), and computes
// the Bloom filter bit maps that spare their evaluation.
//
// # Language
//
//	expression = and { OR and }
//	and        = equality { AND equality }
//	equality   = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
//	comparison = unary { (">" | ">=" | "<" | "<=") unary
//	           | [NOT] BETWEEN unary AND unary
//	           | [NOT] IN "(" string { "," string } ")"
//	           | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string }
//	unary      = { "+" | "-" | NOT } ( literal | name | "(" expression ")" )
//	literal    = string | integer | decimal | TRUE | FALSE | NULL
//
// Keywords are case-insensitive, names of properties are not. A name begins
// with a letter, _ or $, goes on with those and digits, and is no keyword;
// letters are ASCII. A string stands in single quotes, a quote in it is
// doubled. An integer has no leading zero, may end in L and fits 64 bits; a
// decimal has a point or an exponent. There are comments /* … */ and -- to the
// end of the line.
//
// # Values
//
// Every property is text. What it is compared with says how it is read:
//
//   - with a string or another property, = and <> compare the texts;
//   - with a number, the text must be one, in the notation of Java's parsers;
//   - with TRUE or FALSE, "true" in any case is true and all else is false;
//   - <, <=, >, >= and BETWEEN are for numbers: strings, booleans and NULL as
//     operands are refused at compile time, two properties are read as decimals.
//
// A missing property is null. Comparisons with null are unknown, and AND, OR
// and NOT follow the three-valued tables. The text operators (CONTAINS …)
// and their negations are false for null and for what is no text.
//
// Text that had to be a number and is none fails the whole expression, unless
// AND or OR had their result before it: the message does not match. Upstream
// throws an exception there, with the same effect.
//
// What upstream evaluates without an exception has the same result here, its
// oddities included: on a missing property, "5 = p" is false and "5 <> p" true
// where "p = 5" and "p <> 5" are unknown, and "p = q" is true when both are
// missing; a property alone as a condition is never true, so NOT p is true for
// any value of p.
//
// # Differences from upstream
//
//  1. Text behind the expression is refused. Upstream ignores it: it takes
//     "a LIKE 'x'" for "a", "n = 007" for "n = 0" and "a = 1)" for "a = 1".
//     A comment needs no line end when it is the last thing.
//  2. NOT before a comparison without parentheses, "NOT a = 1", is refused.
//     Upstream binds NOT tighter than any comparison: it refuses NOT before <,
//     BETWEEN and IN, never matches "NOT a = 1", and takes "NOT a IS NULL" for
//     "a IS NULL". "NOT (a = 1)" means the same everywhere.
//  3. The literal 0.0 is accepted. Upstream takes the smallest positive number
//     for the lowest one and refuses it.
//  4. A number is compared as a number. For an integer literal upstream wants
//     the text of a 32-bit integer (a 64-bit one if the literal needs it) and
//     fails for 10.5 > 10 and 1700000000000 > 1000.
//  5. TRUE = p and (a = 1) = p read p as a boolean, as p = TRUE does. Upstream
//     fails for each message that has p.
//  6. MaxLength, MaxDepth and MaxList bound an expression.
//
// Errors are *SyntaxError; its Remark is the text that upstream's broker sends
// with code 23 (SUBSCRIPTION_PARSE_FAILED).
package sqlfilter
